"""Lock files and project files: uv.lock, pylock.toml, poetry.lock, Pipfile.lock, pyproject.toml, conda environments."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any, Final

from matrix.ask.check.files.declared import Declared, Open, Statement, UnreadKind, not_read, pin, total
from matrix.ask.check.files.requirements import holds, read_arguments
from matrix.ask.check.files.yaml_text import line_of
from matrix.ground.catalog.place import Place
from matrix.ground.catalog.versions import is_version
from matrix.ground.errors import MatrixError

try:
    import tomli as tomllib  # compiled, and matrix.ground.catalog.schema has loaded it
except ImportError:
    import tomllib  # type: ignore[no-redef, import-not-found]  # Python 3.10 has none

# A package as uv and poetry write it.
_PACKAGE: Final = re.compile(r'^name = "([^"\n]+)"(?:\nversion = "([^"\n]+)")?$', re.MULTILINE)
DEEPEST: Final = 100  # parts of a TOML key: tomllib takes quadratic time. Those of lock files have three
_DEEP_KEY: Final = re.compile(rf"(?<![\w.-])(?:[\"']?[\w-]+[\"']?[ \t]*\.[ \t]*){{{DEEPEST}}}")
MOST_MARKERS: Final = 1_000  # evaluated for one package: 20 ms; a package with more counts as one for Linux
# conda packages whose distribution on PyPI has another name.
CONDA: Final = {"pytorch": "torch", "pytorch-gpu": "torch", "transformer-engine-torch": "transformer-engine"}


def read_toml_lock(text: str, where: str, _: Open) -> Declared:
    """Return the packages of uv.lock, poetry.lock ([[package]]) or pylock.toml ([[packages]])."""
    content = _toml(text, where)
    packages = content.get("package", content.get("packages", []))
    newlines = [found.start() for found in re.finditer("\n", text)]
    lines = {(m[1], m[2] or ""): bisect_right(newlines, m.start()) + 1 for m in _PACKAGE.finditer(text)}
    return _complete(_locked(_tables(packages), where, lines), where)


def read_pyproject(text: str, where: str, open_file: Open) -> Declared:
    """Return [project] dependencies, of all extras and dependency groups too."""
    content = _toml(text, where)
    project = _table(content.get("project"))
    groups = [
        project.get("dependencies"),
        *_table(project.get("optional-dependencies")).values(),
        *_table(content.get("dependency-groups")).values(),
    ]
    lines = [line for group in groups if isinstance(group, list) for line in group if isinstance(line, str)]
    declared = total(read_arguments(line.split(), Place(where), open_file, line=line) for line in lines)
    tools = _table(content.get("tool"))
    if "dependencies" in project.get("dynamic", ()):
        dynamic = _table(_table(_table(tools.get("setuptools")).get("dynamic")).get("dependencies")).get("file", [])
        names = [dynamic] if isinstance(dynamic, str) else dynamic
        if not names:
            return declared + not_read(UnreadKind.FILE, "dependencies that a program computes", Place(where))
        declared += total(read_arguments(["-r", str(name)], Place(where), open_file) for name in names)
    poetry = _table(_table(tools.get("poetry")).get("dependencies"))
    return declared + Declared(pins=tuple(_of_poetry(name, value, where) for name, value in poetry.items()))


def _of_poetry(name: str, value: Any, where: str) -> Statement:
    """Return a dependency of [tool.poetry]; "^2.4" and other forms of its own leave the version open."""
    text = str(value.get("version", "") if isinstance(value, dict) else value).removeprefix("==")
    return pin(name, text, Place(where), "" if is_version(text) else text)


def read_pipfile_lock(text: str, where: str, _: Open) -> Declared:
    """Return the packages of Pipfile.lock."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MatrixError("not JSON", where=where, got=error) from error
    packages = _table(content.get("default")) if isinstance(content, dict) else {}
    tables = {name: table for name, table in packages.items() if isinstance(table, dict)}
    versions = {name: str(table.get("version", "")).removeprefix("==") for name, table in tables.items()}
    return _complete((pin(name, version, Place(where)) for name, version in versions.items()), where)


def _complete(pins: Iterable[Statement], where: str) -> Declared:
    """Return what a lock declares, which names every package; one without any is not read."""
    declared = Declared(pins=tuple(pins), complete=True)
    return (
        declared if declared.pins else not_read(UnreadKind.FILE, "a lock without packages that are read", Place(where))
    )


def is_conda(document: Any) -> bool:
    """Return whether a document of YAML is a conda environment."""
    dependencies = document.get("dependencies") if isinstance(document, dict) else None
    return isinstance(dependencies, list) and any(
        isinstance(item, str) or "pip" in item for item in dependencies if item
    )


def read_environment(document: Any, where: str, open_file: Open) -> Declared | None:
    """Return what an environment of conda declares, None for another document of YAML."""
    return read_conda(document["dependencies"], where, open_file) if is_conda(document) else None


def read_conda(dependencies: Iterable[Any], where: str, open_file: Open, line: int = 0) -> Declared:
    """Return the packages of conda, and those that it installs by pip; `line` is that of items without their own."""
    parts = []
    for item in dependencies:
        if isinstance(item, str):
            parts.append(Declared(pins=tuple(_conda(item, Place(where, line_of(item) or line)))))
        elif isinstance(item, dict):
            inner = item.get("pip")
            for line in inner if isinstance(inner, list) else ():
                parts.append(read_arguments(str(line).split(), Place(where, line_of(line)), open_file, line=str(line)))
    return total(parts)


def _conda(line: str, place: Place) -> Iterable[Statement]:
    found = re.fullmatch(r"(?:[\w./-]+::)?([\w.-]+)\s*(?:==?\s*([\w.+!]+)(?:=[\w.*]+)?)?(.*)", line.strip())
    if found:
        yield pin(CONDA.get(found[1].lower(), found[1]), found[2] or "", place, "" if found[2] else found[3].strip())


def _toml(text: str, where: str) -> dict[str, Any]:
    if deep := _DEEP_KEY.search(text):
        got = f"line {text.count(chr(10), 0, deep.start()) + 1}: {deep[0][:40]}..."
        raise MatrixError("a key nested too deep", where=where, got=got, expected=f"at most {DEEPEST} parts")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also a number of 5,000 digits
        raise MatrixError("not TOML", where=where, got=error) from error


def _table(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, dict) else {}


def _tables(found: Any) -> list[Mapping[str, Any]]:
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _locked(
    packages: Iterable[Mapping[str, Any]], where: str, lines: Mapping[tuple[str, str], int]
) -> Iterable[Statement]:
    """Yield the packages of Linux; of several builds of one package, that for CUDA comes last, and so counts."""
    found = []
    for one in packages:
        if isinstance(one.get("name"), str) and _is_for_linux(one):
            name, version = one["name"], one["version"] if isinstance(one.get("version"), str) else ""
            place = Place(where, lines.get((name, version), 0))
            found.append(pin(name, version, place))
    return sorted(found, key=lambda one: "+cu" in one.version)


def _is_for_linux(package: Mapping[str, Any]) -> bool:
    """Return whether a variant of a package is installed on Linux, with any of the extras that its markers name."""
    markers = package.get("resolution-markers", [package.get(key, "") for key in ("marker", "markers")])
    texts = [one for one in markers if isinstance(one, str) and one] if isinstance(markers, list) else []
    if not texts:
        return True
    # A project's own extras and groups: which of them a user installs is not in the lock.
    extras = {"", *re.findall(r"extra\s*==\s*['\"]([^'\"]+)['\"]", " ".join(texts))}
    return len(extras) * len(texts) > MOST_MARKERS or any(holds(text, extra) for text in texts for extra in extras)
