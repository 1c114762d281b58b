"""Surfaces and calls as files; equal facts give equal bytes.

matrix/ground/catalog/facts/surfaces/ holds the recorded releases:
    transformer-engine/VERSION.json.gz   the API of TE              megatron-core/VERSION.json.gz    its calls into TE
    megatron-core/api.jsonl.xz           the API of megatron-core   megatron-core/torch.jsonl.xz  its calls into torch
    torch/api.jsonl.xz                   the API of torch           pairs.json.gz  what breaks (matrix.read.api.pairs)
    transformer-engine/torch.jsonl.xz    the calls of TE into torch
A .jsonl.xz file has one release in each line, oldest first: together they take a sixth of the size. The records hold
names, parameters, positions and guards in a form of their own, and no upstream source text.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

import matrix.ground.catalog
from matrix.ground.catalog import versions
from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.regular_file import LARGEST, read_regular
from matrix.ground.errors import MatrixError, closest
from matrix.read.api.api import ResolvedPath, Surface
from matrix.read.api.guard import AllOf, AnyOf, Guard, Not
from matrix.read.api.provider import Arguments, Calls, Provider, Site, Use

TE = "transformer-engine"
MCORE = "megatron-core"
FORMAT = 3
SUFFIX = ".json.gz"
ARCHIVE = ".jsonl.xz"
SHORTEST_COMMIT = 7  # characters, as git and TE's own builds abbreviate
FIRST = '{"as":"'  # of a line of an archive: a line is found without parsing all of them
FIX = "record it again: megatrix surface record SOURCE -o FILE"
KINDS: Mapping[str, Callable[..., Guard]] = {kind.__name__: kind for kind in get_args(Guard) if kind is not bool}


def folder() -> Path:
    """Return the folder of the recorded releases."""
    return Path(matrix.ground.catalog.__file__).parent / "facts" / "surfaces"


def recorded(package: str) -> dict[str, Path]:
    """Return the recorded releases of a package, oldest first: version -> file."""
    paths = {path.name.removesuffix(SUFFIX): path for path in (folder() / package).glob(f"*{SUFFIX}")}
    return dict(sorted(paths.items(), key=lambda item: versions.parse(item[0])))


def released(package: str) -> list[str]:
    """Return the recorded versions that were released: no development builds, no builds of a commit."""
    return [text for text in recorded(package) if _is_release(text)]


def _is_release(text: str) -> bool:
    return not versions.parse(text).is_prerelease and "+" not in text


def load_surface(version: str) -> Surface:
    """Return the recorded surface of a TE version; a build of a recorded commit (1.9.0+e79d915) uses the commit's.

    Raises MatrixError when there is none.
    """
    surface = read_surface(find_recorded(TE, version))
    return replace(surface, version=version) if version != surface.version else surface


def load_calls(version: str) -> Calls:
    """Return the recorded calls of a megatron-core version. Raises MatrixError when there is none."""
    return read_calls(find_recorded(MCORE, version))


def find_recorded(package: str, version: str) -> Path:
    """Return the file of a version, of the commit in its local part, or of a tag or commit of the repository.

    Raises MatrixError if it is not recorded.
    """
    path = recorded_file(package, version)
    if path is None:
        raise MatrixError(
            f"no recorded {package} has that version",
            got=version,
            expected="a recorded version, a wheel, a folder or PATH@REV",
            fix=f"megatrix surface record SOURCE -o FILE records another; {closest(version, recorded(package))}",
        )
    return path


def recorded_file(package: str, version: str) -> Path | None:
    """Return what `find_recorded` returns, None if it is not recorded. Raises MatrixError for a damaged file."""
    exact = folder() / package / f"{version}{SUFFIX}"
    if versions.is_version(version) and exact.exists():  # the common case: skips listing the recordings
        return exact
    return next(_matches(recorded(package), version), None)


def _matches(paths: Mapping[str, Path], text: str) -> Iterator[Path]:
    """Yield the files of the same version, then of builds of its commit, then of a tag or commit."""
    if versions.is_version(text):
        version = versions.parse(text)
        releases = {path: versions.parse(name) for name, path in paths.items()}
        yield from (path for path, release in releases.items() if release == version)
        if version.local and len(version.local) >= SHORTEST_COMMIT:
            builds = (path for path, release in releases.items() if release.public == version.public)
            yield from (path for path in builds if _origin(path).get("commit", "").startswith(version.local))
    if text.isdigit() or not versions.is_version(text):
        for path in paths.values():
            is_commit = len(text) >= SHORTEST_COMMIT and _origin(path).get("commit", "").startswith(text)
            if is_commit or _origin(path).get("tag") == text:
                yield path


def _origin(path: Path) -> Mapping[str, str]:
    origin: Mapping[str, str] = read_file(path)["origin"]
    return origin


def archive_of(provider: Provider, consumer: str = "") -> Path:
    """Return the file of the recorded APIs of a provider, or of the calls of a consumer into it."""
    name = f"{consumer}/{provider.key}" if consumer else f"{provider.package}/api"
    return folder() / f"{name}{ARCHIVE}"


def recorded_surfaces(provider: Provider) -> list[str]:
    """Return the versions of a provider whose API is recorded and that were released, oldest first."""
    path = archive_of(provider)
    return list(read_archive(path)) if path.exists() else released(provider.package)


def recorded_surface(provider: Provider, version: str) -> Surface:
    """Return the recorded API of a release. Raises MatrixError when there is none."""
    path = archive_of(provider)
    return _surface(_of_release(path, version)) if path.exists() else load_surface(version)


def recorded_consumers(provider: Provider, consumer: str = MCORE) -> list[str]:
    """Return the releases of a package whose calls into a provider are recorded, oldest first; no commits."""
    path = archive_of(provider, consumer)
    return [text for text in read_archive(path) if _is_release(text)] if path.exists() else released(consumer)


def recorded_calls(provider: Provider, version: str, consumer: str = MCORE) -> Calls:
    """Return the recorded calls of a package into a provider. Raises MatrixError when there are none."""
    path = archive_of(provider, consumer)
    return _calls(_of_release(path, version)) if path.exists() else load_calls(version)


def used_paths(provider: Provider) -> set[str]:
    """Return what the recorded calls use of a provider whose API has an archive, by path."""
    archives = [archive_of(provider, consumer) for consumer in provider.consumers]
    lines = [line for path in archives if path.exists() for line in read_archive(path).values()]
    records = map(json.loads, lines)
    return {path for record in records for path in (*(row[1] for row in record["uses"]), *record.get("fitting", ()))}


def _of_release(path: Path, version: str) -> dict[str, Any]:
    lines = read_archive(path)
    if version not in lines and versions.is_version(version):
        version = next((text for text in lines if versions.parse(text) == versions.parse(version)), version)
    if version not in lines:
        raise MatrixError(
            f"no recorded {path.parent.name} has that version",
            where=path.name,
            got=version,
            expected=f"{next(iter(lines))} .. {next(reversed(lines))}",
            fix=closest(version, lines),
        )
    return _checked(json.loads(lines[version]), path)


# ------------------------------------------------- releases that have a name


def releases_with(provider: Provider, groups: Mapping[str, str]) -> list[tuple[str, bool | None]]:
    """Return the recorded releases of a provider, oldest first, and whether each has what a kind's pattern captured."""
    module, owner, attribute = (groups.get(name, "") for name in ("module", "owner", "attribute"))
    if module:
        path = ":".join(filter(None, [module, groups.get("name", "")]))
        return [(surface.version, surface.offers(path)) for surface in all_surfaces(provider) if provider.owns(module)]
    if keyword := groups.get("keyword"):
        owner, _, method = groups.get("callable", "").rpartition(".")
        return [(surface.version, _takes(surface, owner, method, keyword)) for surface in all_surfaces(provider)]
    return [(surface.version, _has(surface, owner, attribute)) for surface in all_surfaces(provider) if attribute]


def _defining(surface: Surface, name: str) -> list[str]:
    first = name.partition(".")[0]
    return [module for module, names in surface.modules.items() if first and defines(names.get(first))]


def defining_module(provider: Provider, name: str) -> str:
    """Return the first module that defines a class or function in each release that has it, "" for none."""
    places = [set(modules) for surface in all_surfaces(provider) if (modules := _defining(surface, name))]
    return min(set.intersection(*places), default="") if places else ""


def _takes(surface: Surface, owner: str, method: str, keyword: str) -> bool | None:
    """Return whether a callable of the API takes a keyword; None where the API has none, or several that differ."""
    path = f"{owner}.{method}" if owner else method
    results = {surface.takes(f"{module}:{path}", keyword) for module in _defining(surface, owner or method)}
    return results.pop() if len(results) == 1 else None


def defines(entry: Any) -> bool:
    """Return whether an entry of a module is its own: no re-export, nothing that is unknown."""
    return entry is not None and not (isinstance(entry, str) and entry[:1] in ">~")


def _has(surface: Surface, owner: str, attribute: str) -> bool | None:
    paths = [f"{module}:{owner}.{attribute}" for module in _defining(surface, owner)]
    targets = [surface.lookup(path, via_instance=True) for path in paths]
    results = {None if target is None else isinstance(target, ResolvedPath) for target in targets}
    return results.pop() if len(results) == 1 else None


def spans(releases: Sequence[tuple[str, bool | None]], value: bool) -> str:
    """Return the ranges of releases with a value, oldest first: "0.9.0 - 0.14.0, 0.16.0 and later"."""
    runs = [(exists, [*group]) for exists, group in groupby(releases, lambda release: release[1])]
    texts = []
    for number, (exists, run) in enumerate(runs):
        (oldest, _), (newest, _) = run[0], run[-1]
        is_open = number == len(runs) - 1 > 0
        if exists is value:
            texts.append(f"{oldest} and later" if is_open else oldest if oldest == newest else f"{oldest} - {newest}")
    return ", ".join(texts)


@cache
def all_surfaces(provider: Provider) -> list[Surface]:
    """Return the recorded APIs of the releases of a provider, oldest first."""
    return [recorded_surface(provider, version) for version in recorded_surfaces(provider)]


# --------------------------------------------------------------------- files


def write(facts: Surface | Calls, path: Path) -> None:
    """Write a surface or calls; in an archive, add them or replace those of the same version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.name.endswith(ARCHIVE):
        path.write_bytes(encode(facts))
        return
    lines = read_archive(path) if path.exists() else {}
    lines = {**lines, facts.version: f'{FIRST}{facts.version}",{_text(facts)[1:]}'}
    ordered = [lines[version] for version in sorted(lines, key=versions.parse)]
    path.write_bytes(lzma.compress("\n".join(ordered).encode(), preset=9 | lzma.PRESET_EXTREME))
    read_archive.cache_clear()


def encode(facts: Surface | Calls) -> bytes:
    """Return the content of the file of a surface or calls."""
    return gzip.compress(_text(facts).encode(), compresslevel=9, mtime=0)


def _text(facts: Surface | Calls) -> str:
    record = {name: getattr(facts, name) for name in _fields(type(facts))} | {"format": FORMAT}
    if not record.get("fitting", True):
        del record["fitting"]
    if isinstance(facts, Calls):
        guards = _GuardTable()
        record |= {"uses": [_use_row(use, guards.number) for use in facts.uses], "guards": guards.rows}
    return json.dumps(record, separators=(",", ":"), sort_keys=True, default=sorted)


@cache
def read_file(path: Path) -> dict[str, Any]:
    """Return the record in a file. Raises MatrixError when it is unreadable, damaged or of another format."""
    return _checked(_unpacked(path, lambda content: json.loads(_gunzipped(content))), path)


def _gunzipped(content: bytes) -> bytes:
    """Return the content of gzip. Raises ValueError for more than LARGEST bytes."""
    unpacked = gzip.GzipFile(fileobj=io.BytesIO(content)).read(LARGEST + 1)
    if len(unpacked) > LARGEST:
        raise ValueError(f"it unpacks to more than {LARGEST:,} bytes")
    return unpacked


@cache
def read_archive(path: Path) -> dict[str, str]:
    """Return the lines of an archive by version. Raises MatrixError when it is unreadable or damaged."""
    lines: list[str] = _unpacked(path, lambda content: lzma.decompress(content).decode().splitlines())
    return {line[len(FIRST) : line.index('"', len(FIRST))]: line for line in lines}


def _unpacked(path: Path, unpack: Callable[[bytes], Any]) -> Any:
    try:
        return unpack(read_regular(path, what="this surface can't be read", fix=FIX))
    except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError, RecursionError) as error:
        raise MatrixError("this surface file is damaged or cut short", where=str(path), got=error, fix=FIX) from None


def _checked(record: Any, path: Path) -> dict[str, Any]:
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        got = record.get("format") if isinstance(record, dict) else type(record).__name__
        raise MatrixError(
            "not a surface of this format", where=str(path), got=got, expected=f"format {FORMAT}", fix=FIX
        )
    return record


def read_surface(path: Path) -> Surface:
    """Read the surface of a TE. Raises MatrixError when the file holds something else."""
    with _well_formed(path):
        record = _of_package(path, "package", TE)
        decode(dict[str, dict[str, Any]], record["modules"], f"{path}.modules")
        return _surface(record)


def read_calls(path: Path) -> Calls:
    """Read the calls of a megatron-core. Raises MatrixError when the file holds something else."""
    with _well_formed(path):
        return _calls(_of_package(path, "consumer", MCORE))


@contextmanager
def _well_formed(path: Path) -> Iterator[None]:
    """Raise MatrixError where the record of a file that others wrote has another form."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        got = f"{type(error).__name__}: {error}"
        raise MatrixError("not a surface of this format", where=str(path), got=got, fix=FIX) from None


def _of_package(path: Path, key: str, package: str) -> dict[str, Any]:
    record = read_file(path)
    if record.get(key) != package:
        got = ", ".join(f"{name} {record[name]}" for name in ("consumer", "package") if name in record)
        raise MatrixError(
            "the surface of another package", where=str(path), got=got or None, expected=f"{key} {package}"
        )
    return record


# ---------------------------------------------------------------------- JSON


def _fields(kind: type[Surface | Calls]) -> list[str]:
    return [field.name for field in fields(kind) if field.init]


def _surface(record: Mapping[str, Any]) -> Surface:
    return Surface(**{name: record[name] for name in _fields(Surface)} | {"dormant": frozenset(record["dormant"])})


def _calls(record: Mapping[str, Any]) -> Calls:
    guards: list[Guard] = [True]
    for name, *values in record["guards"]:
        kind = KINDS[name]
        if kind is AllOf or kind is AnyOf:
            guards.append(kind(tuple(guards[number] for number in values)))
        else:
            guards.append(kind(guards[values[0]]) if kind is Not else kind(*values))
    uses = tuple(_use(*row, guards=guards) for row in record["uses"])
    return Calls(**{name: record[name] for name in _fields(Calls) if name in record} | {"uses": uses})


def _use(
    kind: str, path: str, site: list[Any], guard: int, here: int, passed: list[Any], *others: Any, guards: list[Guard]
) -> Use:
    arguments = None
    if passed:
        positional, keywords, starred, open_keywords = passed
        keywords = tuple((name, guards[number]) for name, number in keywords)
        arguments = Arguments(tuple(positional), keywords, starred, open_keywords)
    optional: Iterator[Any] = (tuple(value) if isinstance(value, list) else value for value in others)
    return Use(kind, path, Site(*site), guards[guard], guards[here], arguments, *optional)


class _GuardTable:
    """Guards as rows [KIND, VALUE, ...], each naming its parts by their numbers; True is number 0, the rows follow."""

    def __init__(self) -> None:
        self.rows: list[Sequence[object]] = []
        self._numbers: dict[Guard, int] = {True: 0}

    def number(self, guard: Guard) -> int:
        """Return the number of the row of a guard."""
        if guard not in self._numbers:
            parts = guard.parts if isinstance(guard, (AllOf, AnyOf)) else vars(guard).values()
            row = [type(guard).__name__, *(part if isinstance(part, str) else self.number(part) for part in parts)]
            self.rows.append(row)
            self._numbers[guard] = len(self.rows)
        return self._numbers[guard]


def _use_row(use: Use, number: Callable[[Guard], int]) -> list[Any]:
    kind, path, site, guard, line_guard, arguments, *failure_fields = use
    keywords = [[name, number(passed)] for name, passed in arguments.keywords] if arguments else []
    row = arguments and [arguments.positional, keywords, arguments.starred, arguments.open_keywords]
    return [kind, path, site, number(guard), number(line_guard), row, *failure_fields]
