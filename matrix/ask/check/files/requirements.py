"""Files that name packages: requirements and constraints, locks, project files, conda environments, pip's arguments."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from posixpath import basename, dirname, join
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)

from matrix.ask.check.files.declared import (
    Declared,
    Open,
    Statement,
    UnreadKind,
    line_of,
    not_read,
    pin,
    require_at_most,
    total,
)
from matrix.ground.catalog.reach import OPEN_VALUE
from matrix.ground.catalog.stack import PYTHON, Place
from matrix.ground.catalog.versions import is_version, parse
from matrix.ground.errors import MatrixError

try:
    import tomli as tomllib  # compiled, and matrix.ground.catalog.schema has loaded it
except ImportError:
    import tomllib  # type: ignore[no-redef, import-not-found]  # Python 3.10 has none

# A package as uv and poetry write it.
_PACKAGE: Final = re.compile(r'^name = "([^"\n]+)"(?:\nversion = "([^"\n]+)")?$', re.MULTILINE)
DEEPEST_KEY: Final = 100  # parts of a TOML key: tomllib takes quadratic time. Those of lock files have three
_DEEP_KEY: Final = re.compile(rf"(?<![\w.-])(?:[\"']?[\w-]+[\"']?[ \t]*\.[ \t]*){{{DEEPEST_KEY}}}")
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
    """Return [project] dependencies, of all extras and dependency groups too, as the settings of uv change them."""
    content = _toml(text, where)
    project, tools = _table(content.get("project")), _table(content.get("tool"))
    groups = [
        project.get("dependencies"),
        *_table(project.get("optional-dependencies")).values(),
        *_table(content.get("dependency-groups")).values(),
        *_table(_table(tools.get("pdm")).get("dev-dependencies")).values(),
    ]
    lines = [line for group in groups for line in _texts(group)]
    declared = total(read_arguments(line.split(), Place(where), open_file, line=line) for line in lines)
    if "dependencies" in project.get("dynamic", ()):
        dynamic = _table(_table(_table(tools.get("setuptools")).get("dynamic")).get("dependencies")).get("file", [])
        names = [dynamic] if isinstance(dynamic, str) else dynamic
        if not names:
            return declared + not_read(UnreadKind.FILE, "dependencies that a program computes", Place(where))
        declared += total(read_arguments(["-r", str(name)], Place(where), open_file) for name in names)
    poetry = _table(tools.get("poetry"))
    for table in (poetry, {"dependencies": poetry.get("dev-dependencies")}, *_table(poetry.get("group")).values()):
        dependencies = _table(_table(table).get("dependencies"))
        declared += Declared(pins=tuple(_of_poetry(name, value, where) for name, value in dependencies.items()))
    if "pixi" in tools:
        declared += not_read(UnreadKind.FILE, "dependencies of pixi", Place(where))
    return settled(_with_uv(declared, _table(tools.get("uv")), where, open_file))


def _with_uv(declared: Declared, settings: Mapping[str, Any], where: str, open_file: Open) -> Declared:
    """Return what uv makes of the dependencies: overrides and sources replace them, constraints limit them.

    An override also replaces what other packages require, and one whose marker does not hold removes the package:
    where it holds on some machines only, no version is known.
    """

    def read(lines: Iterable[str]) -> Declared:
        return total(read_arguments(line.split(), Place(where), open_file, line=line) for line in lines)

    overrides, constraints = (_texts(settings.get(f"{kind}-dependencies")) for kind in ("override", "constraint"))
    names = {pin.name for pin in (read(overrides) + declared).pins}
    sources = {canonicalize_name(name): source for name, source in _table(settings.get("sources")).items()}
    overrides += [_of_source(name, source) for name, source in sources.items() if name in names and _is_own(source)]
    replaced = {canonicalize_name(name[0]) for line in overrides if (name := re.match(r"[\w.-]+", line))}
    remaining = replace(declared, pins=tuple(pin for pin in declared.pins if pin.name not in replaced))
    overridden = read(overrides)
    pins = tuple(pin(one.name, "", one.place) if one.perhaps else one for one in overridden.pins)
    return read(constraints) + remaining + replace(overridden, pins=pins)


def _is_own(source: Any) -> bool:
    """Return whether a source of uv is another one than an index."""
    return not _table(source).keys().isdisjoint(("git", "url", "path", "workspace"))


def _of_source(name: str, source: Mapping[str, Any]) -> str:
    """Return the requirement that a source of uv stands for; the version in a folder is not known."""
    revision = next((source[key] for key in ("rev", "tag", "branch") if key in source), "")
    location = f"git+{source['git']}" + f"@{revision}" * bool(revision) if "git" in source else source.get("url", "")
    return f"{name} @ {location}" if location else name


def _of_poetry(name: str, value: Any, where: str) -> Statement:
    """Return a dependency of [tool.poetry]; "^2.4" and other forms of its own leave the version open."""
    if isinstance(value, dict) and "git" in value:
        release = from_location(_of_source(name, value).partition(" @ ")[2], Place(where))
        return replace(release, name=canonicalize_name(name)) if release else pin(name, "", Place(where))
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
    declared = settled(Declared(pins=tuple(pins), complete=True))
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
    form = r"(?:[\w./-]+::)?([\w.-]+)\s{0,99}(?:(==?)\s{0,99}([\w.+!]+)(?:=[\w.*]+)?)?"
    if found := re.match(form, line := line.strip()):
        name, operator, version = CONDA.get(found[1].lower(), found[1]), found[2], (found[3] or "").rstrip(".")
        # pytorch=2.4 is any 2.4.x; of Python, minors are known.
        is_any = operator == "=" and name != PYTHON and re.fullmatch(r"\d+(\.\d+)?", version)
        limits = f"=={version}.*" if is_any else "" if version else line[found.end() :].strip()
        yield pin(name, "" if is_any else version, place, limits)


def _toml(text: str, where: str) -> dict[str, Any]:
    if deep := _DEEP_KEY.search(text):
        got = f"line {text.count(chr(10), 0, deep.start()) + 1}: {deep[0][:40]}..."
        raise MatrixError("a key nested too deep", where=where, got=got, expected=f"at most {DEEPEST_KEY} parts")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also a number of 5,000 digits
        raise MatrixError("not TOML", where=where, got=error) from error


def _table(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, dict) else {}


def _texts(found: Any) -> list[str]:
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []


def _tables(found: Any) -> list[Mapping[str, Any]]:
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _locked(
    packages: Iterable[Mapping[str, Any]], where: str, lines: Mapping[tuple[str, str], int]
) -> Iterable[Statement]:
    """Yield the packages of Linux; of several builds of one package, that for CUDA comes last, and so counts."""
    found = []
    for one in packages:
        if isinstance(one.get("name"), str) and (machines := _machines(one)):
            name, version = one["name"], one["version"] if isinstance(one.get("version"), str) else ""
            place = Place(where, lines.get((name, version), 0))
            package = _of_repository(one, name, place) or pin(name, version, place)
            found.append(replace(package, perhaps=machines != ALL))
    return sorted(found, key=lambda one: "+cu" in one.version)


def _of_repository(package: Mapping[str, Any], name: str, place: Place) -> Statement | None:
    """Return a package that a lock takes from a git repository, None for another; the tag of a release is a release."""
    source = {**_table(package.get("source")), **_table(package.get("vcs"))}
    url = source.get("git", source.get("url") if source.get("type") == "git" else None)
    if not isinstance(url, str):
        return None
    asked = re.findall("[?&](?:rev|tag|branch)=([^&#]+)", url)
    stated = [*asked, *map(source.get, REVISIONS), url.partition("#")[2], "of a repository"]
    revision = unquote(next(text for text in stated if isinstance(text, str) and text))
    release = TAG.search(revision)
    return pin(name, release[1] if release else "", place, "" if release else f"==={revision}")


def _machines(package: Mapping[str, Any]) -> frozenset[int]:
    """Return the MACHINES that install a variant of a package, with any of the extras that its markers name."""
    markers = package.get("resolution-markers", [package.get(key, "") for key in ("marker", "markers")])
    texts = [one for one in markers if isinstance(one, str) and one] if isinstance(markers, list) else []
    # A project's own extras and groups: which of them a user installs is not in the lock.
    extras = {"", *re.findall(r"extra\s*==\s*['\"]([^'\"]+)['\"]", " ".join(texts))}
    if not texts or len(extras) * len(texts) > MOST_MARKERS:
        return ALL
    return frozenset().union(*(holds(text, extra) for text in texts for extra in extras))


DEEPEST: Final = 20  # files that include each other, one in the other. Real projects nest two or three
MOST_LINES: Final = 50_000  # requirements of one file: 2 s. Large environments have 1,000
LINUX: Final[dict[str, str]] = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
# Markers are evaluated for the machines that train, whose Python and processor are not known: not for this one.
MACHINES: Final = [
    {**LINUX, "python_version": python, "python_full_version": f"{python}.9", "platform_machine": processor}
    for python in ("3.10", "3.11", "3.12", "3.13", "3.14")
    for processor in ("x86_64", "aarch64")
]
ALL: Final = frozenset(range(len(MACHINES)))
# Options of pip whose value is the next word.
VALUED: Final = frozenset(
    {"-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--trusted-host", "--no-binary", "--only-binary"}
    | {"-t", "--target", "--prefix", "--root", "--cache-dir", "--timeout", "--retries", "--platform", "--src", "--log"}
    | {"--python-version", "--config-settings", "-C", "--global-option", "--build-option", "--progress-bar", "--proxy"}
    | {"--cert", "--client-cert", "--python", "--torch-backend"}
)
# The tag of a release in a git URL: v1.9, release_v2.4, core_v0.8.0, core_r0.8.0.
TAG: Final = re.compile(r"(?:^|[_/-])[vr](\d{1,9}(?:\.\d{1,9}){1,9}(?!\d)\w{0,99})$")
REVISIONS: Final = ("reference", "requested-revision", "commit-id")  # of a repository, in poetry.lock and pylock.toml
# A wheel with "*" or a substitution in its name: the distribution, and the public version if it is there. A run of word
# characters is tried once, from its first letter: other starts in it would end alike, in quadratic time.
WHEEL: Final = re.compile(
    r"(?<![\w.])(?:(?![A-Za-z])[\w.])*(?P<name>[A-Za-z][\w.]*?)(?:-(?P<version>\d[\w.]*)(?=[-+])|[-_.]?\*|-\D)"
)
# Repositories whose distribution has another name.
REPOSITORIES: Final = {
    "megatron-lm": "megatron-core",
    "transformerengine": "transformer-engine",
    "pytorch": "torch",
    "deepep": "deep-ep",
}


def read_requirements(text: str, where: str, open_file: Open, *, includes: dict[str, bool] | None = None) -> Declared:
    """Return what a requirements file declares, with the files that it includes; each is read once.

    `includes` has the paths read so far: True for those that include this file, directly or not.
    """
    includes = {} if includes is None else includes
    includes[where] = True
    parts = list[Declared]()
    for number, line in _lines(text):
        require_at_most(MOST_LINES, len(parts), "requirements", where)
        parts.append(read_arguments(line.split(), Place(where, number), open_file, includes=includes, line=line))
    includes[where] = False
    return settled(total(parts))


def read_arguments(
    words: Sequence[str], place: Place, open_file: Open, *, includes: dict[str, bool] | None = None, line: str = ""
) -> Declared:
    """Return what the arguments of `pip install` declare; `line` is a whole line of a requirements file."""
    if (words and words[0].startswith("-")) or not line:
        return _options(words, place, open_file, {} if includes is None else includes)
    return _requirement(line, place)


def _options(words: Sequence[str], place: Place, open_file: Open, includes: dict[str, bool]) -> Declared:
    parts, rest = [], list(words)
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if not equals and word[:2] in ("-r", "-c", "-e") and len(word) > 2 and not word.startswith("--"):
            option, equals, value = word[:2], "=", word[2:]
        if option in ("-r", "--requirement", "-c", "--constraint"):
            name = value if equals else rest.pop(0) if rest else ""
            parts.append(_included(name, place, open_file, includes))
        elif option in ("-e", "--editable"):
            parts.append(_requirement(value if equals else rest.pop(0) if rest else "", place))
        elif option in VALUED and not equals:
            del rest[:1]
        elif not word.startswith("-"):
            parts.append(_requirement(word, place))
    return total(parts)


def _included(name: str, place: Place, open_file: Open, includes: dict[str, bool]) -> Declared:
    found = open_file(name)
    if found is None:
        return not_read(UnreadKind.FILE, f"{name} is missing", place)
    path, text = found
    if path in includes:  # what it declares is known; a cycle is an error for pip
        return Declared(notes=(f"{place}: includes {name} again",) if includes[path] else ())
    if sum(includes.values()) > DEEPEST:
        return not_read(UnreadKind.FILE, f"{name}: files include each other {DEEPEST} deep", place)
    # As pip reads it: relative to the file that includes it.
    declared = read_requirements(text, path, lambda other: open_file(join(dirname(name), other)), includes=includes)
    # Its name is of the input, which may be anyone's: a line that is no requirement may be of a file of passwords.
    parts = ((one, one.text.partition(": ")[0]) for one in declared.unread)
    unread = (replace(one, text=kind) if one.kind is UnreadKind.PACKAGE else one for one, kind in parts)
    return replace(declared, unread=tuple(unread))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield logical lines with the number of their first line, without comments and pip's options of one package."""
    start, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), start=1):
        start = start if parts else number
        if line.endswith("\\"):
            parts.append(line[:-1] + " ")
            continue
        line, parts = re.sub(r"(^|\s)#.*", "", "".join([*parts, line])), []
        line = re.sub(r"\s--(hash|config-settings|global-option|build-option)[= ]\S+", "", line).strip()
        if line:
            yield start, line


def _requirement(text: str, place: Place) -> Declared:
    text = text.strip()
    try:
        if text.endswith(".whl"):  # its name alone has the form of a package's
            raise InvalidRequirement(text)
        parsed = Requirement(text)
        if any(one.operator != "===" and not is_version(one.version.removesuffix(".*")) for one in parsed.specifier):
            raise InvalidRequirement(text)  # a number of 5,000 digits
    except (InvalidRequirement, RecursionError):  # a marker of 1,000 parentheses
        if found := from_location(text, place) or _of_wheel(text, place):
            return Declared(pins=(found,))
        kind = "a variable without a value" if OPEN_VALUE.search(text) else "not a requirement"
        return not_read(UnreadKind.PACKAGE, f"{kind}: {text[:100]}", place)
    try:
        machines = evaluated(str(parsed.marker), "") if parsed.marker else ALL
    except ValueError:  # also of Python, for a number of 5,000 digits
        return not_read(UnreadKind.PACKAGE, f"a marker that can't be evaluated: {text[:100]}", place)
    if parsed.url:
        found = from_location(parsed.url, place)
        version, limits = (found.version, found.limits) if found else ("", "")
    else:
        pinned = (one.version for one in parsed.specifier if one.operator in ("==", "==="))
        # ==2.8.0.* has no other release than 2.8.0; ==2.8.* may have. ==2.8.0,!=2.8.0 has none.
        exact = (re.sub(r"^(\d+\.\d+\.\d+)\.\*$", r"\1", text) for text in pinned)
        version = next((text for text in exact if is_version(text) and parsed.specifier.contains(text, True)), "")
        limits = "" if version else str(parsed.specifier)
    statement = replace(pin(parsed.name, version, place, limits), perhaps=machines != ALL)
    return Declared(pins=(statement,) * bool(machines))


def holds(marker: str, extra: str) -> frozenset[int]:
    """Return the MACHINES on which a marker holds, with an extra; all for one that can't be evaluated."""
    try:
        return evaluated(marker, extra)
    except (ValueError, RecursionError):
        return ALL


@lru_cache(maxsize=1024)  # the packages of a lock share most of their markers
def evaluated(marker: str, extra: str) -> frozenset[int]:
    """Return the MACHINES on which a marker holds, with an extra. Raises ValueError, RecursionError."""
    parsed = Marker(marker)
    return frozenset(at for at, machine in enumerate(MACHINES) if parsed.evaluate({**machine, "extra": extra}))


def settled(declared: Declared) -> Declared:
    """Return what a file declares; of a package of which it states one release, that is installed on any machine."""
    releases: dict[str, set[str]] = {}
    for one in declared.pins:
        releases.setdefault(one.name, set()).update([parse(one.version).public] if one.version else ())
    pins = (replace(one, perhaps=one.perhaps and len(releases[one.name]) > 1) for one in declared.pins)
    return replace(declared, pins=tuple(pins))


def _of_wheel(text: str, place: Place) -> Statement | None:
    """Return the pin of a wheel whose name has parts that a shell fills in."""
    name = basename(text)
    if not name.endswith(".whl") or not (found := WHEEL.search(name.removesuffix(".whl"))):
        return None
    return pin(found["name"], found["version"] or "", place, "" if found["version"] else f"==={name[found.start() :]}")


def from_location(text: str, place: Place) -> Statement | None:
    """Return the pin of a URL or path: of a wheel or sdist by its name, of a git repository by the tag of a release."""
    url, _, fragment = text.partition("#")
    try:
        path = unquote(urlsplit(url).path)
    except ValueError:  # http://[
        return None
    name = basename(path)
    try:
        if name.endswith(".whl"):
            distribution, version, *_ = parse_wheel_filename(name)
            return pin(distribution, str(version), place)
        if name.endswith((".tar.gz", ".zip")) and "+" not in url.partition("://")[0]:
            distribution, version = parse_sdist_filename(name)
            return pin(distribution, str(version), place)
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None
    if not text.startswith("git+") and ".git" not in path:
        return None
    repository, _, revision = path.partition("@")
    stem = basename(repository).removesuffix(".git").lower()
    egg = re.search(r"(?:^|&)egg=([\w.-]+)", fragment)
    tag = TAG.search(revision)
    limits = f"==={revision}" if revision and not tag else ""  # no release: no version is in it
    return pin(egg[1] if egg else REPOSITORIES.get(stem, stem), tag[1] if tag else "", place, limits)
