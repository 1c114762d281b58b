"""Surfaces and calls as files; equal facts give equal bytes.

matrix/catalog/facts/surfaces/ holds the recorded releases:
    transformer-engine/VERSION.json.gz   the API of TE              megatron-core/VERSION.json.gz    its calls into TE
    megatron-core/api.jsonl.xz           the API of megatron-core   megatron-core/torch.jsonl.xz  its calls into torch
    torch/api.jsonl.xz                   the API of torch           pairs.json.gz  what breaks (matrix.contract.pairs)
A .jsonl.xz file has one release in each line, oldest first: together they take a sixth of the size. The
records hold names, parameters, positions and guards in a form of their own, and no upstream source text.
"""

from __future__ import annotations

import gc
import gzip
import json
import lzma
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from packaging.version import Version

from matrix.catalog import versions
from matrix.contract.guard import AllOf, AnyOf, Config, Guard, Loads, Not, Offers, Takes, TeVersion, Unclear
from matrix.contract.provider import Provider
from matrix.contract.surface import Surface
from matrix.contract.usage import Arguments, Calls, Site, Use
from matrix.errors import MatrixError, closest

TE = "transformer-engine"
MCORE = "megatron-core"
FORMAT = 1
SUFFIX = ".json.gz"
ARCHIVE = ".jsonl.xz"
SHORTEST_COMMIT = 7  # characters, as git and TE's own builds abbreviate
FIRST = b'{"as":"'  # of a line of an archive
FIX = "record it again: megatrix surface record SOURCE -o FILE"
LEAVES: Mapping[str, type[Guard]] = {
    "version": TeVersion, "offers": Offers, "loads": Loads, "takes": Takes, "config": Config, "unclear": Unclear,
}  # fmt: skip
WITHIN = ("called", "instances", "returned", "refused")  # what matrix.contract.within reads
_Given = ParamSpec("_Given")
_Read = TypeVar("_Read")
SYMBOLS = {kind: symbol for symbol, kind in LEAVES.items()}


def folder() -> Path:
    """Return the folder of the recorded releases."""
    return Path(__file__).parents[1] / "catalog" / "facts" / "surfaces"


def recorded(package: str) -> dict[str, Path]:
    """Return the recorded releases of a package, oldest first: version -> file."""
    paths = {path.name.removesuffix(SUFFIX): path for path in (folder() / package).glob(f"*{SUFFIX}")}
    return dict(sorted(paths.items(), key=lambda item: versions.parse(item[0])))


def released(package: str) -> list[str]:
    """Return the recorded versions that were released: no development builds, no builds of a commit."""
    return [text for text in recorded(package) if not versions.parse(text).is_prerelease and "+" not in text]


def load_surface(version: str) -> Surface:
    """Return the recorded surface of a TE version; a build of a recorded commit (1.9.0+e79d915) uses the commit's.

    Raises MatrixError when there is none.
    """
    path = find_recorded(TE, version)
    surface = read_surface(path)
    return replace(surface, version=version) if version != surface.version else surface


def load_calls(version: str) -> Calls:
    """Return the recorded calls of a megatron-core version. Raises MatrixError when there is none."""
    return read_calls(find_recorded(MCORE, version))


def _quickly(read: Callable[_Given, _Read]) -> Callable[_Given, _Read]:
    """Run a reader without garbage collection, which takes a third of the time and finds nothing: all of it is kept."""

    @wraps(read)
    def run(*given: _Given.args, **named: _Given.kwargs) -> _Read:
        enabled = gc.isenabled()
        gc.disable()
        try:
            return read(*given, **named)
        finally:
            if enabled:
                gc.enable()

    return run


def find_recorded(package: str, version: str) -> Path:
    """Return the file of a version, of the commit in its local part, or of a tag or commit of the repository."""
    if versions.is_version(version):
        path = folder() / package / f"{version}{SUFFIX}"
        if path.exists():  # the common case: skips listing the recordings
            return path
    paths = recorded(package)
    if versions.is_version(version):
        parsed_version = versions.parse(version)
        for text, path in paths.items():
            if versions.parse(text) == parsed_version:
                return path
        for text, path in paths.items():
            if parsed_version.local and _is_build_of(parsed_version, text, path):
                return path
    for path in () if versions.is_version(version) and not version.isdigit() else paths.values():
        origin = read_file(path)["origin"]
        if origin.get("tag") == version or (len(version) >= SHORTEST_COMMIT and _commit(path).startswith(version)):
            return path
    raise MatrixError(
        f"no recorded {package} has that version", got=version,
        expected="a recorded version, a wheel, a folder or PATH@REV",
        fix=f"megatrix surface record SOURCE -o FILE records another; {closest(version, paths)}",
    )  # fmt: skip


def _is_build_of(parsed_version: Version, text: str, path: Path) -> bool:
    if versions.parse(text).public != parsed_version.public:
        return False
    local = str(parsed_version.local)
    return len(local) >= SHORTEST_COMMIT and _commit(path).startswith(local)


def _commit(path: Path) -> str:
    commit: str = read_file(path)["origin"].get("commit", "")
    return commit


def archive_of(provider: Provider, consumer: str = "") -> Path:
    """Return the file of the recorded APIs of a provider, or of the calls of a consumer into it."""
    if consumer:
        return folder() / consumer / f"{provider.key}{ARCHIVE}"
    return folder() / provider.package / f"api{ARCHIVE}"


def recorded_surfaces(provider: Provider) -> list[str]:
    """Return the versions of a provider whose API is recorded and that were released, oldest first."""
    return released(TE) if provider.package == TE else list(read_archive(archive_of(provider)))


def recorded_surface(provider: Provider, version: str) -> Surface:
    """Return the recorded API of a release. Raises MatrixError when there is none."""
    return load_surface(version) if provider.package == TE else _surface(_of_release(archive_of(provider), version))


def recorded_consumers(provider: Provider) -> list[str]:
    """Return the releases of megatron-core whose calls into a provider are recorded, oldest first."""
    return released(MCORE) if provider.package == TE else list(read_archive(archive_of(provider, MCORE)))


def recorded_calls(provider: Provider, version: str) -> Calls:
    """Return the recorded calls of a megatron-core into a provider. Raises MatrixError when there are none."""
    if provider.package == TE:
        return load_calls(version)
    return _calls(_of_release(archive_of(provider, MCORE), version))


def _of_release(path: Path, version: str) -> dict[str, Any]:
    lines = read_archive(path)
    known = version in lines or not versions.is_version(version)
    same = version if known else next((v for v in lines if versions.parse(v) == versions.parse(version)), version)
    if same not in lines:
        raise MatrixError(
            f"no recorded {path.parent.name} has that version", where=path.name, got=version,
            expected=f"{next(iter(lines))} .. {next(reversed(lines))}", fix=closest(version, lines),
        )  # fmt: skip
    return _checked(json.loads(lines[same]), path)


@cache
def read_archive(path: Path) -> dict[str, bytes]:
    """Return the lines of an archive by version. Raises MatrixError when it is unreadable or damaged."""
    try:
        lines = lzma.decompress(path.read_bytes()).splitlines()
    except OSError as error:
        raise MatrixError("this surface can't be read", where=str(path), got=error, fix=FIX) from None
    except (EOFError, lzma.LZMAError) as error:
        raise MatrixError("this surface file is damaged or cut short", where=str(path), got=error, fix=FIX) from None
    return {line[len(FIRST) : line.index(b'"', len(FIRST))].decode(): line for line in lines}


# --------------------------------------------------------------------- files


def write(facts: Surface | Calls, path: Path) -> None:
    """Write a surface or calls; in an archive, add them or replace those of the same version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.name.endswith(ARCHIVE):
        path.write_bytes(encode(facts))
        return
    lines = {**(read_archive(path) if path.exists() else {}), facts.version: _line(facts)}
    ordered = sorted(lines.items(), key=lambda item: versions.parse(item[0]))
    path.write_bytes(lzma.compress(b"\n".join(line for _, line in ordered), preset=9 | lzma.PRESET_EXTREME))
    read_archive.cache_clear()


def encode(facts: Surface | Calls) -> bytes:
    """Return the content of the file of a surface or calls."""
    return gzip.compress(_text(_record(facts)), compresslevel=9, mtime=0)


def _line(facts: Surface | Calls) -> bytes:
    """Return a line of an archive; the version comes first, so that a line is found without parsing all of them."""
    return FIRST + facts.version.encode() + b'",' + _text(_record(facts))[1:]


def _text(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":"), sort_keys=True, ensure_ascii=True).encode()


def _record(facts: Surface | Calls) -> dict[str, Any]:
    record: dict[str, Any] = {"format": FORMAT, "version": facts.version, "origin": dict(facts.origin)}
    if isinstance(facts, Surface):
        record |= {"package": facts.package, "modules": facts.modules, "dormant": sorted(facts.dormant)}
        return record | {name: getattr(facts, name) for name in WITHIN}
    table = _GuardTable()
    uses = [_use_to_json(use, table) for use in facts.uses]
    record |= {"package": facts.consumer, "guards": table.rows, "uses": uses}
    return record | ({} if facts.provider == TE else {"provider": facts.provider})


@cache
@_quickly
def read_file(path: Path) -> dict[str, Any]:
    """Return the record in a file. Raises MatrixError when it is unreadable, damaged or of another format."""
    try:
        record = json.loads(gzip.decompress(path.read_bytes()))
    except OSError as error:
        raise MatrixError("this surface can't be read", where=str(path), got=error, fix=FIX) from None
    except (EOFError, zlib.error, ValueError) as error:
        raise MatrixError("this surface file is damaged or cut short", where=str(path), got=error, fix=FIX) from None
    return _checked(record, path)


def _checked(record: Any, path: Path) -> dict[str, Any]:
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        got = record.get("format") if isinstance(record, dict) else type(record).__name__
        raise MatrixError(
            "not a surface of this format", where=str(path), got=got, expected=f"format {FORMAT}", fix=FIX
        )
    return record


def read_surface(path: Path) -> Surface:
    """Read the surface of a TE. Raises MatrixError when the file holds something else."""
    return _surface(_of_package(path, TE))


@_quickly
def _surface(record: Mapping[str, Any]) -> Surface:
    return Surface(
        record["version"], record["modules"], frozenset(record["dormant"]), record["origin"], record["package"],
        *(record[name] for name in WITHIN),
    )  # fmt: skip


def read_calls(path: Path) -> Calls:
    """Read the calls of a megatron-core. Raises MatrixError when the file holds something else."""
    return _calls(_of_package(path, MCORE))


@_quickly
def _calls(record: Mapping[str, Any]) -> Calls:
    table = _guards_from_json(record["guards"])
    uses = tuple(_use_from_json(row, table) for row in record["uses"])
    return Calls(record["version"], uses, record["origin"], record["package"], record.get("provider", TE))


def _of_package(path: Path, package: str) -> dict[str, Any]:
    record = read_file(path)
    if record["package"] != package:
        raise MatrixError("the surface of another package", where=str(path), got=record["package"], expected=package)
    return record


# ---------------------------------------------------------------------- JSON


class _GuardTable:
    """Guards as rows, each naming its parts by row number; row 0 is True."""

    def __init__(self) -> None:
        self.rows: list[Any] = [True]
        self._known: dict[Guard, int] = {True: 0}

    def row(self, guard: Guard) -> int:
        if guard not in self._known:
            if isinstance(guard, (AllOf, AnyOf)):
                row: list[Any] = ["all" if isinstance(guard, AllOf) else "any", *map(self.row, guard.parts)]
            elif isinstance(guard, Not):
                row = ["not", self.row(guard.part)]
            else:
                row = [SYMBOLS[type(guard)], *vars(guard).values()]
            self._known[guard] = len(self.rows)
            self.rows.append(row)
        return self._known[guard]


def _guards_from_json(rows: list[Any]) -> list[Guard]:
    table: list[Guard] = [True]
    for symbol, *values in rows[1:]:
        if symbol in ("all", "any"):
            parts = tuple(table[value] for value in values)
            table.append(AllOf(parts) if symbol == "all" else AnyOf(parts))
        elif symbol == "not":
            table.append(Not(table[values[0]]))
        else:
            table.append(LEAVES[symbol](*values))
    return table


def _use_to_json(use: Use, table: _GuardTable) -> list[Any]:
    arguments = use.arguments
    passed = arguments and [
        list(arguments.positional),
        [[name, table.row(guard)] for name, guard in arguments.keywords],
        int(arguments.starred),
        int(arguments.open_keywords),
    ]
    return [
        use.kind, use.path, use.site.path, use.site.line, use.site.function, table.row(use.guard), table.row(use.here),
        passed,
        use.bound, list(use.swallowed), use.effect, int(use.fallback), list(use.refused),
        *([use.signature, use.unpacks] if use.signature or use.unpacks else []),
    ]  # fmt: skip


def _use_from_json(row: list[Any], table: list[Guard]) -> Use:
    kind, path, file, line, function, guard, here, passed, bound, swallowed, effect, fallback, refused, *more = row
    arguments = passed and Arguments(
        tuple(passed[0]), tuple((name, table[place]) for name, place in passed[1]), bool(passed[2]), bool(passed[3])
    )
    return Use(
        kind, path, Site(file, line, function), table[guard], table[here], arguments, bound, tuple(swallowed),
        effect, bool(fallback), tuple(refused), *more,
    )  # fmt: skip
