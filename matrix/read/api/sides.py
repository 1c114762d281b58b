"""The sides of a comparison, from text: a recorded version, a wheel, a folder, a revision of a clone, a range.

Nothing is run. A revision is read by its objects: nothing is checked out, and a bare clone is enough.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from email.parser import HeaderParser
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, TypeVar

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name, parse_wheel_filename

from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.distributions import IndexedRelease
from matrix.ground.catalog.regular_file import read_regular, within_limits
from matrix.ground.catalog.schema import VersionText, toml_table
from matrix.ground.catalog.stack import BRIDGE_PAIRS, CALL_PAIRS
from matrix.ground.errors import MatrixError
from matrix.read import package_source
from matrix.read.api import consuming, offering, recording
from matrix.read.api.api import Surface
from matrix.read.api.comparison import find
from matrix.read.api.finding import Finding
from matrix.read.api.pairs import recorded
from matrix.read.api.provider import PROVIDERS, TRANSFORMER_ENGINE, Calls, Provider, provider_of
from matrix.read.api.recording import MCORE, SUFFIX, TE
from matrix.read.api.relevance import is_yanked
from matrix.read.git import Repository
from matrix.read.package_source import LARGEST_CONTENT, Contents, Source, SourceKind
from matrix.read.trees import LAYOUTS, package_files

Select = Callable[[str], bool]
Facts = TypeVar("Facts", Surface, Calls)
# Not part of a project: virtual environments, builds, dependencies of a checkout.
PROJECT_S: Final = 300.0  # seconds of CPU time in which a whole project is read
NEWEST_PYTHON: Final = "3.12"  # what the newest megatron-core requires; markers of requirements are evaluated with it
FORMS: Final = '"megatron-core" (all recorded releases), "megatron-core>=0.16,<0.20", "torch==2.6.0", "torch=FILE.whl"'
LEFT_OUT: Final = {"build", "dist", "node_modules", "site-packages", "venv"}


def surface_of(text: str) -> Surface:
    """Return the surface of the TE that `text` names. Raises MatrixError when there is none."""
    if text.endswith(SUFFIX):
        return recording.read_surface(Path(text))
    source = _source(text, TE)
    return recording.load_surface(text) if source is None else extract_surface(package_source.inspect(source))


def calls_of(text: str) -> Calls:
    """Return the calls of the megatron-core that `text` names. Raises MatrixError when there are none."""
    if text.endswith(SUFFIX):
        return recording.read_calls(Path(text))
    source = _source(text, MCORE)
    return recording.load_calls(text) if source is None else extract_calls(package_source.inspect(source))


def _source(text: str, package: str) -> Source | None:
    """Return None for a version or tag (which must be recorded), otherwise the source that `text` names."""
    is_tag = "/" not in text and "@" not in text and not Path(text).exists()
    source = None if is_tag else package_source.parse(text, package)
    return None if source is None or source.kind is SourceKind.PYPI else source


def surface_of_source(text: str, provider: Provider, version: str | None = None) -> Surface:
    """Return the surface of a wheel, a folder or PATH@REV of a provider; `version` replaces the one that it declares.

    Raises MatrixError when there is none; a folder or a revision of most packages declares no version.
    """
    if provider.package in LAYOUTS:
        return extract_surface(package_source.inspect(package_source.parse(text, provider.package)), version, provider)
    if text.endswith(".whl"):
        path = package_source.existing(package_source.absolute(Path.cwd(), text), text)
        wheel = Source(provider.package, SourceKind.WHEEL, str(path))
        return extract_surface(package_source.inspect(wheel), version, provider)
    name, files = _project(text, lambda path: provider.holds(_inside(path)))
    if not version:
        problem = "the version of this source is not read"
        raise MatrixError(problem, where=text, got=name, expected="a wheel, or a version", fix="--as VERSION")
    inside = {_inside(path): content for path, content in files.items()}
    return _surface(inside, text, version, {"revision": name.rpartition("@")[2]}, provider)


def _inside(path: str) -> str:
    """Return the path in a wheel of a file of a source tree."""
    return re.sub("^(src|python)/", "", path)


def extract_surface(contents: Contents, version: str | None = None, provider: Provider = TRANSFORMER_ENGINE) -> Surface:
    """Read the surface of a provider's source; `version` replaces the one that the source declares.

    Raises MatrixError when it holds none of the provider's Python.
    """
    files, where = files_of(contents, provider.holds), str(contents.source)
    return _surface(files, where, version or contents.version, _origin(contents), provider)


def _surface(
    files: Mapping[str, bytes], where: str, version: str, origin: Mapping[str, str], provider: Provider
) -> Surface:
    used = recording.used_paths(provider)
    read = partial(offering.read_offering, version=version, origin=origin, provider=provider, used=used)
    return _extracted(files, where, provider.fix, read)


def extract_calls(contents: Contents, version: str | None = None, provider: Provider = TRANSFORMER_ENGINE) -> Calls:
    """Read the calls of a source of Megatron-LM or TE into a provider; `version` replaces the one that it declares.

    Raises MatrixError when it holds none of its Python.
    """
    consumer = contents.source.package
    part = partial(consuming.is_part, consumer=consumer)
    facts: dict[str, Any] = {"version": version or contents.version, "origin": _origin(contents), "provider": provider}
    read = partial(consuming.read_calls, **facts, consumer=consumer, part=part)
    return _extracted(files_of(contents, part), str(contents.source), PROVIDERS[consumer].fix, read)


def _extracted(files: Mapping[str, bytes], where: str, fix: str, read: Callable[[Mapping[str, bytes]], Facts]) -> Facts:
    if not any(path.endswith(".py") for path in files):
        raise MatrixError("the source has no Python files of the package", where=where, fix=fix)
    try:
        with within_limits(where, PROJECT_S):
            return read(files)
    except SyntaxError as error:
        raise _unparsable(where, error, "package") from None


def _unparsable(where: str, got: object, kind: str) -> MatrixError:
    problem, fix = "this interpreter can't parse a source file", f"use an interpreter as new as the {kind} requires"
    return MatrixError(problem, where=where, got=got, fix=fix)


def files_of(contents: Contents, part: Select) -> Mapping[str, bytes]:
    """Return the files of a source that `part` selects by path, uncommitted changes of a folder included."""
    source = contents.source
    if source.kind is SourceKind.WHEEL:
        return package_source.members(Path(source.location), part)
    if source.kind is SourceKind.TREE:
        root = Path(source.location)
        paths = {file.relative_to(root).as_posix(): file for file in package_files(root / source.layout.folder)}
        return _within_size(source.location, ((name, read_regular(file)) for name, file in paths.items() if part(name)))
    with Repository(source.location) as clone:
        return _files_of_commit(clone, contents.identity.split()[1], source.layout.folder, part)


def _files_of_commit(clone: Repository, commit: str, folder: str, part: Select) -> Mapping[str, bytes]:
    files = clone.files(commit, folder, part).items()
    return _within_size(f"{clone.path}@{commit[:10]}", ((path, clone.object(id)[1]) for path, id in files))


def _within_size(where: str, files: Iterable[tuple[str, bytes]]) -> dict[str, bytes]:
    """Return the files. Raises MatrixError for more than LARGEST_CONTENT bytes, before the others are read."""
    contents, size = dict[str, bytes](), 0
    for path, content in files:
        contents[path], size = content, size + len(content)
        if size > LARGEST_CONTENT:
            raise MatrixError("too many bytes", where=where, got=f"> {LARGEST_CONTENT:,}", fix="name a smaller folder")
    return contents


def _origin(contents: Contents) -> dict[str, str]:
    source, identity = contents.source, contents.identity
    if source.kind is SourceKind.WHEEL:
        return {"wheel": Path(source.location).name}
    if source.kind is SourceKind.TREE:
        return {"tree": identity.split()[1]}
    commit = identity.split()[1]
    return {"commit": commit} if commit.startswith(source.revision) else {"commit": commit, "tag": source.revision}


# ------------------------------------------------------------------ projects


def calls_of_project(text: str, provider: Provider) -> Calls:
    """Return the calls into a provider of any Python project: a folder, a revision of a clone or a wheel.

    Its own copy of the provider is left out. Raises MatrixError when there is no such project, when it does not mention
    the provider, or on a broken file.
    """
    name, files = _project(text, _is_product)
    files = {path: text for path, text in files.items() if not provider.files.fullmatch(_inside(path))}
    if not any(provider.top.encode() in content for content in files.values()):
        raise MatrixError(
            f"nothing in this project uses {provider.package}",
            where=text,
            got=f"{len(files)} Python files",
            expected=f"a file that contains {provider.top!r}",
        )
    try:
        with within_limits(text, PROJECT_S):
            return consuming.read_calls(files, name, provider=provider, consumer=name, part=lambda path: True)
    except SyntaxError as error:
        raise _unparsable(f"{text}: {error.filename}:{error.lineno}", error.msg, "project") from None


def calls_of_wheel(text: str, provider: Provider) -> Calls | None:
    """Return the calls of a wheel into a provider that has its package among its consumers; None for another source."""
    path = Path(text)
    name, version = parse_wheel_filename(path.name)[:2] if path.suffix == ".whl" else ("", "")
    if name in LAYOUTS or name not in provider.consumers:
        return None
    calls = calls_of_project(text, provider)
    return replace(calls, version=str(version), consumer=name, origin={"wheel": path.name})


def declared_ranges(text: str) -> Mapping[str, SpecifierSet]:
    """Return the ranges of packages in a project's metadata; a package of extras alone has that of the first of them.

    The project itself, which its extras may name, has none. Read are METADATA of a wheel, and pyproject.toml of a
    folder or a revision.
    """
    groups: list[tuple[str, Sequence[str]]] = []  # extra, requirements
    own_name = ""
    for path, content in _project(text, _is_metadata)[1].items():
        if path.endswith("METADATA"):
            headers = HeaderParser().parsestr(content.decode("utf-8", "replace"))
            required, own_name = headers.get_all("Requires-Dist", []), headers.get("Name", "")
            groups += [(extra, required) for extra in ("", *headers.get_all("Provides-Extra", []))]
        else:
            where = f"{text}: {path}.project"
            project = decode(dict[str, Any], toml_table(content, where).get("project", {}), where)
            own_name = decode(str, project.get("name", ""), where)
            extras = decode(dict[str, tuple[str, ...]], project.get("optional-dependencies", {}), where)
            parts = [decode(tuple[str, ...], project.get("dependencies", ()), where), *extras.values()]
            groups += [("", part) for part in parts]
    ranges: dict[str, SpecifierSet] = {}
    for extra, lines in groups:
        release = IndexedRelease(text, VersionText("0"), requires=tuple(lines))
        try:
            ranges = {**release.ranges(NEWEST_PYTHON, (extra,)), **ranges}
        except InvalidRequirement as error:
            raise MatrixError("not a requirement in the metadata", where=text, got=str(error).splitlines()[0]) from None
    return {name: allowed for name, allowed in ranges.items() if name != canonicalize_name(own_name)}


def mentioned(text: str) -> list[Provider]:
    """Return the providers that a project mentions, in files that are none of theirs."""
    files = _project(text, _is_product)[1].items()
    return [
        provider
        for provider in PROVIDERS.values()
        if any(provider.mention in content and not provider.files.fullmatch(_inside(path)) for path, content in files)
    ]


def _is_metadata(path: str) -> bool:
    return path == "pyproject.toml" or re.fullmatch(r"[^/]+\.dist-info/METADATA", path) is not None


def _project(text: str, part: Select) -> tuple[str, Mapping[str, bytes]]:
    """Return the name of a project and the files that `part` selects."""
    folder, at, revision = text.rpartition("@")
    if at and Path(folder).expanduser().is_dir() and not Path(text).exists():
        path = package_source.absolute(Path.cwd(), folder)
        with Repository(path) as clone:
            commit = clone.commit(revision)
            if not commit:
                raise MatrixError("no such revision in this clone", where=str(path), got=revision)
            return f"{path.name}@{revision}", _files_of_commit(clone, commit, "", part)
    path = package_source.existing(package_source.absolute(Path.cwd(), text), text)
    if path.suffix == ".whl":
        return path.stem, package_source.members(path, part)
    if not path.is_dir():
        raise MatrixError("not a project", where=str(path), got="a file", expected="a folder, PATH@REV or a wheel")
    return path.name, _within_size(str(path), ((name, read_regular(path / name)) for name in _walk(path, part)))


def _walk(root: Path, part: Select) -> Iterator[str]:
    for folder, inner, files in os.walk(root):
        inner[:] = sorted(name for name in inner if name not in LEFT_OUT and not name.startswith("."))
        for path in (Path(folder) / name for name in sorted(files)):
            name = path.relative_to(root).as_posix()
            if part(name) and not path.is_symlink():
                yield name


def _is_product(path: str) -> bool:
    *folders, name = path.split("/")
    return name.endswith(".py") and not any(folder in LEFT_OUT or folder.startswith(".") for folder in folders)


# ------------------------------------------------- releases of a provider


@dataclass(frozen=True)
class Target:
    """Releases of a provider. `chosen`: the text selects some of them, so a break in any is an error."""

    provider: Provider
    versions: tuple[str, ...]
    chosen: bool
    source: str = ""  # of the only release, if that is not a recorded one

    def surfaces(self) -> list[Surface]:
        """Return the APIs. Raises MatrixError for a source that can't be read."""
        if self.source:
            return [surface_of_source(self.source, self.provider)]
        return [recorded(self.provider, version) for version in self.versions]


def target_of(text: str) -> Target:
    """Return the releases that a text selects. Raises MatrixError when it is in none of FORMS, or selects none."""
    name, equals, source = text.partition("=")
    if equals and source[:1] not in "=" and name[-1:] not in "<>!~=":
        return Target(provider_of(name.strip()), (), chosen=True, source=source)
    requirement = _requirement(text)
    provider = provider_of(requirement.name)
    versions = _selected(text, provider.package, recording.recorded_surfaces(provider))
    return Target(provider, versions, chosen=bool(requirement.specifier))


def declared_targets(consumer: str) -> list[Target]:
    """Return the releases that a project declares, of each provider; all of megatron-core where it declares none.

    A range without a recorded release selects all. Of a recorded consumer they are all releases that it calls. Left out
    are providers that it does not mention, and those of which only the names that recorded packages use are recorded.
    """
    called = [pair.provider for pair in (*CALL_PAIRS, *BRIDGE_PAIRS) if _is_recorded(consumer, pair.consumer)]
    if called:
        return [target_of(package) for package in called]
    declared = declared_ranges(consumer)
    targets = []
    used = mentioned(consumer) if declared.keys() & PROVIDERS else []
    whole = [provider.package for provider in used if provider.package in declared and provider.is_whole]
    for package in whole or [MCORE]:
        allowed = declared.get(package, SpecifierSet())
        is_met = any(allowed.filter(recording.recorded_surfaces(provider_of(package))))
        targets.append(target_of(f"{package}{allowed}" if is_met else package))
    return targets


def _requirement(text: str) -> Requirement:
    try:
        return Requirement(text)
    except InvalidRequirement as error:
        raise MatrixError("not a package", got=text, expected=FORMS, fix=str(error).splitlines()[0]) from None


def _selected(text: str, package: str, versions: Sequence[str]) -> tuple[str, ...]:
    """Return the releases in a range, without withdrawn ones that it does not name."""
    offered = [version for version in versions if not is_yanked(package, version) or f"=={version}" in text]
    selected = tuple(_requirement(text).specifier.filter(offered))
    if not selected:
        raise MatrixError(f"no recorded release of {package} is in this range", got=text, expected=", ".join(offered))
    return selected


def _is_recorded(text: str, package: str) -> bool:
    """Return whether a consumer is named as a package, not as a folder or wheel."""
    return text.startswith(package) and not Path(text).exists()


def consumers_of(text: str, provider: Provider) -> list[Calls]:
    """Return the calls of a consumer into a provider: recorded releases of megatron-core or TE, or a project.

    Raises MatrixError for a text that names neither.
    """
    for package in provider.consumers:
        if _is_recorded(text, package):
            versions = _selected(text, package, recording.recorded_consumers(provider, package))
            return [recording.recorded_calls(provider, version, package) for version in versions]
    return [calls_of_project(text, provider)]


@cache
def findings(mcore: str, te: str) -> tuple[Finding, ...]:
    """Return every break of a Megatron-LM with a Transformer Engine. Raises MatrixError where one is not recorded."""
    return tuple(find(cached_calls(mcore), cached_surface(te)))


cached_calls, cached_surface = cache(calls_of), cache(surface_of)
