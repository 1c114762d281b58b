"""YAML of any kind: jobs, conda environments, and settings of Megatron, NeMo, Megatron-Bridge and verl."""

from __future__ import annotations

from collections.abc import Iterator
from posixpath import join
from typing import Any, Final

from matrix.ask.check.files.declared import Declared, Open, UnreadKind, UserCommand, not_read, total
from matrix.ask.check.files.job_yaml import kind_of, read_job
from matrix.ask.check.files.locks import read_environment
from matrix.ask.check.files.yaml_text import line_of, load_yaml
from matrix.ground.catalog.place import Place
from matrix.ground.catalog.settings import dashed, is_foreign, recognised
from matrix.ground.errors import MatrixError

PROGRAM: Final = "settings"  # the first word of the command that stands for a file of settings
DEFAULTS: Final = "defaults"  # the files of hydra that a file of settings includes
DEEPEST: Final = 5  # files of settings that include each other; verl nests three


def read_yaml(text: str, where: str, open_file: Open) -> Declared:
    """Return what the documents of a file declare. One of an unknown kind is not read, and never settings."""
    try:
        documents = load_yaml(text, where)
        return total(_document(document, where, open_file) for document in documents)
    except MatrixError as error:
        return not_read(UnreadKind.YAML, f"{error.what}: {error.got}", Place(error.where or where))


def _document(document: Any, where: str, open_file: Open) -> Declared:
    if kind := kind_of(document):
        return read_job(document, kind, where, open_file)
    if environment := read_environment(document, where, open_file):
        return environment
    settings, unread = _with_included(document, where, open_file, 0)
    if not recognised(name for name, _ in settings):
        text = "a kind of YAML that is not read: neither a job nor settings of Megatron, NeMo, Megatron-Bridge or verl"
        return not_read(UnreadKind.YAML, text, Place(where))
    words = [word for name, value in settings for word in _argument(name, value)]
    return total([*unread, Declared(commands=(UserCommand((PROGRAM, *words), Place(where)),))])


def _with_included(
    document: Any, where: str, open_file: Open, depth: int
) -> tuple[list[tuple[str, Any]], list[Declared]]:
    """Return the settings of a document after those of the files that it includes, and what of these is not read."""
    settings, unread = [], []
    for name, optional in _included(document):
        opened = open_file(f"{name}.yaml") if depth < DEEPEST else None
        if opened is not None:
            for included in load_yaml(opened[1], opened[0]):
                inner, missing = _with_included(included, opened[0], open_file, depth + 1)
                settings += inner
                unread += missing
        elif not optional:
            place = Place(where, line_of(name))
            unread.append(not_read(UnreadKind.FILE, f"the settings {name}.yaml are missing", place))
    return [*settings, *_settings(document)], unread


def _included(document: Any) -> Iterator[tuple[str, bool]]:
    """Yield the files of hydra that a document includes, without ".yaml", and whether each may be missing."""
    defaults = document.get(DEFAULTS) if isinstance(document, dict) else None
    for entry in defaults if isinstance(defaults, list) else ():
        for key, value in entry.items() if isinstance(entry, dict) else ((entry, entry),):
            group = str(key).rpartition(" ")[2].partition("@")[0].strip("/")
            for name in value if isinstance(value, list) else [value]:
                if isinstance(name, str) and name != "_self_" and not is_foreign([group]):
                    yield join(group, name) if isinstance(entry, dict) else name, str(key).startswith("optional ")


def _settings(content: Any) -> Iterator[tuple[str, Any]]:
    """Yield each key of a plain value with that value; a table is read once, however often aliases repeat it."""
    pending, seen = [content], set[int]()
    while pending:
        value = pending.pop()
        if id(value) in seen or not isinstance(value, (dict, list)):
            continue
        seen.add(id(value))
        for key, item in value.items() if isinstance(value, dict) else (("", item) for item in value):
            if isinstance(item, (dict, list)):
                if not is_foreign([str(key)]) and key != DEFAULTS:
                    pending.append(item)
            elif key:
                yield str(key), item


def _argument(name: str, value: Any) -> list[str]:
    if value is None or not dashed(name):
        return []
    if isinstance(value, bool):
        return [f"--{dashed(name)}" if value else f"--no-{dashed(name)}"]
    return [f"--{dashed(name)}={value}"]
