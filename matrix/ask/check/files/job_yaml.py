"""YAML of any kind: what starts jobs, conda environments, settings of Megatron, NeMo, Megatron-Bridge and verl.

Of what starts jobs, one table has the images, commands, variables and requirements of each kind.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from posixpath import basename, join, normpath
from typing import Any, Final

import matrix.ground.catalog
from matrix.ask.check.files.declared import (
    Declared,
    ImageUse,
    Open,
    UnreadKind,
    UserCommand,
    line_of,
    load_yaml,
    not_read,
    total,
)
from matrix.ask.check.files.dockerfile import read_dockerfile
from matrix.ask.check.files.requirements import read_arguments, read_environment
from matrix.ask.check.files.shell import Shell
from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.reach import dashed, is_foreign, recognised
from matrix.ground.catalog.schema import read_toml
from matrix.ground.catalog.stack import Place
from matrix.ground.errors import MatrixError

PROGRAM: Final = "settings"  # the first word of the command that stands for a file of settings
DEFAULTS: Final = "defaults"  # the files of hydra that a file of settings includes
DEEPEST_INCLUDE: Final = 5  # files of settings that include each other; verl nests three


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
        opened = open_file(f"{name}.yaml") if depth < DEEPEST_INCLUDE else None
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


TABLE: Final = Path(matrix.ground.catalog.__file__).parent / "facts" / "job_kinds.toml"
# Lines that only a script has.
SCRIPT_TEXT: Final = re.compile(
    r"\A\s*#!|^[ \t]*(?:pip3?|uv pip|python3? -m pip|conda) install |^[ \t]*torchrun ", re.MULTILINE
)
DEEPEST: Final = 40  # levels below which no container is looked for; a CronJob has 9
MOST: Final = 10_000  # texts at a path of one unit; aliases of aliases repeat them without end


@dataclass(frozen=True)
class UnitPaths:
    """The paths of what runs in one container; the head of the table describes them."""

    at: str
    needs: str = ""
    image: str = ""
    dockerfile: str = ""
    context: str = ""
    target: str = ""
    arguments: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    shell: tuple[str, ...] = ()
    pip: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    sets: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class JobKind:
    """A kind of YAML that starts jobs: a row of the table."""

    name: str
    keys: tuple[str, ...]
    source: str
    unit: tuple[UnitPaths, ...]
    passive: tuple[str, ...] = ()
    root: str = ""


@dataclass(frozen=True)
class _Table:
    kind: tuple[JobKind, ...]


@dataclass(frozen=True)
class _Node:
    """A value of a document, with the nodes above it, the document first."""

    value: Any
    above: tuple[_Node, ...] = ()

    def items(self) -> Iterator[tuple[str, _Node]]:
        """Yield what the value contains by key, that of a list by number."""
        value = self.value
        pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, item in pairs:
            yield str(key), _Node(item, (*self.above, self))

    def at(self, path: str) -> list[_Node]:
        """Return the nodes at the first alternative of a path that has any."""
        for alternative in path.split(" | "):
            start, steps = self, alternative
            if alternative.startswith("/"):
                start, steps = (*self.above, self)[0], alternative[1:]
            while steps.startswith("../"):
                start, steps = (start.above or (start,))[-1], steps[3:]
            nodes = [start]
            for step in filter(None, steps.split(".")):
                nodes = [inner for node in nodes for inner in node.step(step)]
            if nodes := [node for node in nodes if node.value is not None]:
                return nodes
        return []

    def step(self, step: str) -> Iterator[_Node]:
        """Yield the nodes to which one step of a path leads."""
        if step == "**":
            yield from self._every(set())
        elif step.endswith("!"):
            for node in self.step(step[:-1]):
                documents = load_yaml(node.value, "", line_of(node.value)) if isinstance(node.value, str) else []
                yield from (_Node(document, (*self.above, self)) for document in documents)
        else:
            yield from (node for key, node in self.items() if step in ("*", key))

    def _every(self, seen: set[int]) -> Iterator[_Node]:
        """Yield this node and those below it; a value that aliases repeat counts once."""
        if isinstance(self.value, (dict, list)) and id(self.value) not in seen and len(self.above) < DEEPEST:
            seen.add(id(self.value))
            yield self
            for _, node in self.items():
                yield from node._every(seen)


@cache
def job_kinds() -> tuple[JobKind, ...]:
    """Return the rows of the table. Raises MatrixError where it is damaged."""
    return decode(_Table, read_toml(TABLE), str(TABLE)).kind


def kind_of(document: Any) -> JobKind | None:
    """Return the kind of a document, None for one that starts no job as far as is known."""
    node = _Node(document)
    return next((kind for kind in job_kinds() if all(node.at(path) for path in kind.keys)), None)


def read_job(document: Any, kind: JobKind, where: str, open_file: Open) -> Declared:
    """Return what the units of a document declare, each image a stack of its own.

    A unit that only names an image counts where no other does more.
    """

    nodes = (item for node in _Node(document).at("**") for item in node.items())
    scripts = [(key, node.value) for key, node in nodes if _is_script(node.value)]
    lines = set[int]()  # where the texts begin that the units run

    def from_root(name: str) -> tuple[str, str] | None:
        if opened := open_file(name) or (open_file(normpath(join(kind.root, name))) if kind.root else None):
            return opened
        text = next((text for key, text in scripts if key == basename(name)), None)
        if text is None:
            return None
        lines.add(line_of(text))
        return where, "\n" * (line_of(text) - 1) + text

    found = [(node, paths) for paths in kind.unit for node in _Node(document).at(paths.at) if node.at(paths.needs)]
    readers = [_Unit(*pair, where, from_root) for pair in found]
    units = [unit for unit in (reader.read() for reader in readers) if unit != Declared()]
    lines |= {place.line for reader in readers for place in reader.texts_run()}
    others = [text for _, text in scripts if line_of(text) not in lines]
    inline = [Shell(where, from_root).read(variable_names(text), line_of(text) or 1) for text in others]
    if not units and kind.passive and document.get("kind") not in kind.passive:
        text = f"a {kind.name} of the kind {document.get('kind')} without containers that are known"
        return total([not_read(UnreadKind.YAML, text, Place(where)), *inline])
    groups: dict[tuple[str, ...], list[Declared]] = {}
    for unit in [unit for unit in units if unit.commands or unit.pins or unit.unread] or units:
        groups.setdefault(tuple(image.reference for image in unit.images), []).append(unit)
    alone = [
        key for key, group in groups.items() if not any(unit.images or unit.pins or unit.commands for unit in group)
    ]
    shared = [unit for key in alone if len(groups) > 1 for unit in groups.pop(key)]  # they belong to all of the file
    first, *further = map(total, groups.values()) if groups else [Declared()]
    return replace(first + total([*shared, *inline]), apart=(*first.apart, *further))


def _is_script(value: Any) -> bool:
    """Return whether a value is the text of a script, under whatever key."""
    return isinstance(value, str) and "\n" in value and bool(SCRIPT_TEXT.search(value))


@dataclass(frozen=True)
class _Unit:
    """What runs in one container."""

    node: _Node
    paths: UnitPaths
    where: str
    open_file: Open

    def read(self) -> Declared:
        """Return what the unit declares."""
        shell = Shell(self.where, self.open_file, {name: [value] for name, value in self._variables()})
        shell.exported = set(shell.variables)
        return total(
            [self._image(shell), *self._requirements(), self._command(shell), *self._scripts(shell), *self._files()]
        )

    def _texts(self, paths: Iterable[str]) -> Iterator[tuple[Place, str]]:
        """Yield the texts at these paths, those of lists one by one."""
        pending = [node.value for path in paths for node in self.node.at(path)][::-1]
        for _ in range(MOST):
            if not pending:
                return
            value = pending.pop()
            if isinstance(value, list):
                pending += value[::-1]
            elif isinstance(value, str):
                yield Place(self.where, line_of(value)), str(value)

    def texts_run(self) -> Iterator[Place]:
        """Yield where the texts are that the unit runs."""
        yield from (place for place, _ in self._texts((*self.paths.argv, *self.paths.shell)))

    def _variables(self) -> Iterator[tuple[str, str]]:
        for name, path in self.paths.sets.items():
            for _, text in self._texts((path,)):
                if number := re.search(r"(?<!\d)\d+$", text):
                    yield name, number[0]
        yield from self._named(self.paths.env)

    def _named(self, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yield the names and values of tables, and of lists of NAME=VALUE, or of name and value."""
        for table in (node for path in paths for node in self.node.at(path)):
            for key, node in table.items():
                name, value = key, node.value
                if isinstance(table.value, list) and isinstance(value, str):
                    name, equals, text = value.partition("=")
                    value = text if equals else None
                elif isinstance(value, dict):
                    name, value = str(value.get("name", key)), value.get("value")
                if isinstance(value, (str, bool)):
                    yield name, str(value).lower() if isinstance(value, bool) else value

    def _image(self, shell: Shell) -> Declared:
        contexts = list(self._texts((self.paths.context,))) if self.paths.context else []
        dockerfiles = list(self._texts((self.paths.dockerfile,))) if self.paths.dockerfile else []
        if contexts or dockerfiles:
            return self._built(contexts[0][1] if contexts else ".", *(dockerfiles or contexts)[0])
        images = []
        for node in self.node.at(self.paths.image) if self.paths.image else []:
            parts = {key: item.value for key, item in node.items() if isinstance(item.value, str)}
            name = join(parts.get("registry", ""), parts.get("repository", "")) if parts else node.value
            text = variable_names(f"{name}:{parts['tag']}" if "tag" in parts else name if isinstance(name, str) else "")
            line = line_of(node.value) or line_of(parts.get("tag", parts.get("repository")))
            if expanded := "".join(shell.words(text)) or text:
                images.append(ImageUse(expanded.removeprefix("docker:"), Place(self.where, line)))
        return Declared(images=tuple(images))

    def _built(self, context: str, place: Place, name: str) -> Declared:
        """Return what the Dockerfile declares of which the image is built; `name` may be that of its folder."""
        path = normpath(join(context, "Dockerfile" if name == context else name))
        if (opened := self.open_file(path)) is None:
            return not_read(UnreadKind.FILE, f"{path} is missing", place)
        target = "".join(text for _, text in self._texts(filter(None, (self.paths.target,))))
        arguments = dict(self._named(self.paths.arguments))
        return read_dockerfile(
            opened[1], opened[0], lambda other: self.open_file(normpath(join(context, other))), arguments, target
        )

    def _requirements(self) -> Iterator[Declared]:
        for place, line in self._texts(self.paths.pip):
            yield read_arguments(line.split(), place, self.open_file, line=line)

    def _command(self, shell: Shell) -> Declared:
        words: list[str] = []
        place = Place(self.where)
        environ = {name: " ".join(value) for name, value in shell.variables.items()}
        for path in self.paths.argv:
            for node in self.node.at(path):
                texts = list(self._texts((path,)))
                place = max([place, *(text_place for text_place, _ in texts)], key=lambda found: found.line)
                words += [text for _, text in texts] if isinstance(node.value, list) else split(str(node.value))
        words = [re.sub(r"\$\((\w+)\)", lambda found: environ.get(found[1], found[0]), word) for word in words]
        return shell.run(words, place, environ)

    def _scripts(self, shell: Shell) -> Iterator[Declared]:
        for place, text in self._texts(self.paths.shell):
            yield shell.read(variable_names(text), place.line or 1)

    def _files(self) -> Iterator[Declared]:
        for path in self.paths.files:
            path, _, prefix = path.partition(" = ")
            for place, name in self._texts((path,)):
                if name.startswith(prefix):
                    yield not_read(UnreadKind.FILE, f"{name} is not read", place)


def variable_names(text: str) -> str:
    """Return a text with ${{ env.NAME }} of GitHub as ${NAME} of a shell."""
    return re.sub(r"\$\{\{\s*env\.(\w+)\s*\}\}", r"${\1}", text)


def split(text: str) -> list[str]:
    """Return the words of a command; one with an open quote is a single word."""
    try:
        return shlex.split(text)
    except ValueError:
        return [text]
