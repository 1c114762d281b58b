"""Surfaces and calls as files; equal facts give equal bytes.

matrix/catalog/facts/surfaces/ holds the recorded releases:
    transformer-engine/VERSION.json.gz   the API of TE              megatron-core/VERSION.json.gz    its calls into TE
    megatron-core/api.jsonl.xz           the API of megatron-core   megatron-core/torch.jsonl.xz  its calls into torch
    torch/api.jsonl.xz                   the API of torch           pairs.json.gz  what breaks (matrix.contract.pairs)
A .jsonl.xz file has one release in each line, oldest first: together they take a sixth of the size. A .json.gz file of
TE has a line for each module and for each name that TE itself calls; a reader parses the lines that it needs. The
records hold names, parameters, positions and guards in a form of their own, and no upstream source text.
"""

from __future__ import annotations

import gzip
import json
import lzma
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from packaging.version import Version

from matrix.catalog import versions
from matrix.contract.guard import (
    AllOf,
    AnyOf,
    Config,
    Guard,
    Judge,
    Loads,
    Not,
    Offers,
    Takes,
    TeVersion,
    Truth,
    Unclear,
)
from matrix.contract.provider import Provider
from matrix.contract.surface import Surface
from matrix.contract.uncollected import uncollected
from matrix.contract.usage import NOWHERE, Arguments, Calls, Site, Use, Uses
from matrix.errors import MatrixError, closest

TE = "transformer-engine"
MCORE = "megatron-core"
FORMAT = 2
SUFFIX = ".json.gz"
ARCHIVE = ".jsonl.xz"
parse_json = json.JSONDecoder().raw_decode  # at a place in a text
SHORTEST_COMMIT = 7  # characters, as git and TE's own builds abbreviate
FIRST = '{"as":"'  # of a line of an archive
SECTIONS = ("called", "modules")  # of a file of TE, sorted: an entry in each line
FIX = "record it again: megatrix surface record SOURCE -o FILE"
KINDS: Mapping[str, type[Guard]] = {
    "version": TeVersion, "offers": Offers, "loads": Loads, "takes": Takes, "config": Config, "unclear": Unclear,
    "not": Not, "all": AllOf, "any": AnyOf,
}  # fmt: skip
WITHIN = ("called", "instances", "returned", "refused")  # what matrix.contract.within reads
SYMBOLS = {kind: symbol for symbol, kind in KINDS.items()}


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
def read_archive(path: Path) -> dict[str, str]:
    """Return the lines of an archive by version. Raises MatrixError when it is unreadable or damaged."""
    try:
        lines = lzma.decompress(path.read_bytes()).decode().splitlines()
    except OSError as error:
        raise MatrixError("this surface can't be read", where=str(path), got=error, fix=FIX) from None
    except (EOFError, lzma.LZMAError) as error:
        raise MatrixError("this surface file is damaged or cut short", where=str(path), got=error, fix=FIX) from None
    return {line[len(FIRST) : line.index('"', len(FIRST))]: line for line in lines}


# --------------------------------------------------------------------- files


def write(facts: Surface | Calls, path: Path) -> None:
    """Write a surface or calls; in an archive, add them or replace those of the same version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.name.endswith(ARCHIVE):
        path.write_bytes(encode(facts))
        return
    lines = {**(read_archive(path) if path.exists() else {}), facts.version: _line(facts)}
    ordered = sorted(lines.items(), key=lambda item: versions.parse(item[0]))
    path.write_bytes(lzma.compress("\n".join(line for _, line in ordered).encode(), preset=9 | lzma.PRESET_EXTREME))
    read_archive.cache_clear()


def encode(facts: Surface | Calls) -> bytes:
    """Return the content of the file of a surface or calls."""
    record = _record(facts)
    parts = [f'"{key}":{_section(value) if key in SECTIONS else _text(value)}' for key, value in sorted(record.items())]
    return gzip.compress(f"{{{','.join(parts)}}}".encode(), compresslevel=9, mtime=0)


def _section(entries: Mapping[str, Any]) -> str:
    """Return an object of JSON with an entry in each line, so that a reader parses only those that it needs."""
    lines = ",".join(f"\n{_text(name)}:{_text(value)}" for name, value in sorted(entries.items()))
    return f"{{\n{lines}\n\n}}"


def _line(facts: Surface | Calls) -> str:
    """Return a line of an archive; the version comes first, so that a line is found without parsing all of them."""
    return f'{FIRST}{facts.version}",{_text(_record(facts))[1:]}'


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=True)


def _record(facts: Surface | Calls) -> dict[str, Any]:
    record: dict[str, Any] = {"format": FORMAT, "version": facts.version, "origin": dict(facts.origin)}
    if isinstance(facts, Surface):
        record |= {"package": facts.package, "modules": dict(facts.modules), "dormant": sorted(facts.dormant)}
        return record | {name: dict(getattr(facts, name)) for name in WITHIN}
    table = _GuardTable()
    numbers = {place: number for number, (_, places) in enumerate(facts.uses.forms) for place in places}
    uses = [[numbers[place], *_use_to_json(use, table)] for place, use in enumerate(facts.uses)]
    forms = [_form_to_json(form) for form, _ in facts.uses.forms]
    record |= {"package": facts.consumer, "guards": table.rows, "forms": forms, "uses": uses}
    return record | ({} if facts.provider == TE else {"provider": facts.provider})


@cache
@uncollected()
def read_file(path: Path) -> dict[str, Any]:
    """Return the record in a file. Raises MatrixError when it is unreadable, damaged or of another format."""
    try:
        record = _parsed(gzip.decompress(path.read_bytes()).decode())
    except OSError as error:
        raise MatrixError("this surface can't be read", where=str(path), got=error, fix=FIX) from None
    except (EOFError, zlib.error, ValueError) as error:
        raise MatrixError("this surface file is damaged or cut short", where=str(path), got=error, fix=FIX) from None
    return _checked(record, path)


def _parsed(text: str) -> Any:
    """Return a record whose sections, each between blank lines, are parsed on use."""
    lines = text.split("\n")
    bounds = [-1, *(number for number, line in enumerate(lines) if not line), len(lines)]
    parts = [lines[first + 1 : last] for first, last in pairwise(bounds)]
    record = json.loads("".join(chain(*parts[::2])))
    return record if len(parts) == 1 else record | dict(zip(SECTIONS, map(_Section, parts[1::2]), strict=True))


class _Section(Mapping[str, Any]):
    """An object of JSON, each entry parsed when it is read."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = {line[1 : line.index('"', 1)]: line for line in lines}
        self._known: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            line = self._lines[name]
            self._known[name], _ = parse_json(line, line.index(":") + 1)
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._lines

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)


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


def _surface(record: Mapping[str, Any]) -> Surface:
    return Surface(
        record["version"], record["modules"], frozenset(record["dormant"]), record["origin"], record["package"],
        *(record[name] for name in WITHIN),
    )  # fmt: skip


def read_calls(path: Path) -> Calls:
    """Read the calls of a megatron-core. Raises MatrixError when the file holds something else."""
    return _calls(_of_package(path, MCORE))


@uncollected()
def _calls(record: Mapping[str, Any]) -> Calls:
    uses = _RecordedUses(record)
    return Calls(record["version"], uses, record["origin"], record["package"], record.get("provider", TE))


def _of_package(path: Path, package: str) -> dict[str, Any]:
    record = read_file(path)
    if record["package"] != package:
        raise MatrixError("the surface of another package", where=str(path), got=record["package"], expected=package)
    return record


# ---------------------------------------------------------------------- JSON


class _GuardTable:
    """Guards as rows "SYMBOL VALUE ...", each naming its parts by row number; row 0 is True.

    A row is one text, since a list of lists takes four times as long to parse.
    """

    def __init__(self) -> None:
        self.rows = ["all"]
        self._known: dict[Guard, int] = {True: 0}

    def row(self, guard: Guard) -> int:
        if guard not in self._known:
            if isinstance(guard, (AllOf, AnyOf, Not)):
                parts = (guard.part,) if isinstance(guard, Not) else guard.parts
                values: Iterable[object] = [self.row(part) for part in parts]
            else:
                values = vars(guard).values()
            self._known[guard] = len(self.rows)
            self.rows.append(" ".join([SYMBOLS[type(guard)], *map(str, values)]))
        return self._known[guard]


def _use_to_json(use: Use, table: _GuardTable) -> list[Any]:
    """Return what a use has beside its form."""
    keywords = use.arguments.keywords if use.arguments else ()
    passed = [table.row(guard) for _, guard in keywords if guard is not True]
    caught = [use.swallowed, use.effect, use.fallback, use.refused]
    return [*use.site, table.row(use.guard), table.row(use.here), passed, *(caught if any(caught) else [])]


def _form_to_json(form: Use) -> list[Any]:
    row: list[Any] = [form.kind, form.path, form.bound, form.signature, form.unpacks]
    if form.arguments is None:
        return row
    positional, keywords, starred, open_keywords = form.arguments
    guarded = [place for place, (_, always) in enumerate(keywords) if not always]
    return [*row, positional, [name for name, _ in keywords], guarded, starred, open_keywords]


def _form_from_json(kind: str, path: str, bound: str, signature: str, unpacks: int, *passed: Any) -> Use:
    arguments = None
    if passed:
        positional, names, guarded, starred, open_keywords = passed
        keywords = tuple((name, place not in guarded) for place, name in enumerate(names))
        arguments = Arguments(tuple(positional), keywords, starred, open_keywords)
    return Use(kind, path, NOWHERE, True, True, arguments, bound, (), "", False, (), signature, unpacks)


class _RecordedUses(Uses):
    """The uses of a record, each built when it is read: in most pairs of releases, most forms fit."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self._rows, self._guards = record["uses"], record["guards"]
        self._guard = cache(self._read_guard)
        self.forms: list[tuple[Use, list[int]]] = [(_form_from_json(*row), []) for row in record["forms"]]
        for place, row in enumerate(self._rows):
            self.forms[row[0]][1].append(place)

    def __len__(self) -> int:
        return len(self._rows)

    def reached(self, place: int, judge: Judge) -> Truth:
        number = self._rows[place][4]
        symbol, *parts = self._guards[number].split(" ")
        for part in parts if symbol == "all" else ():
            if judge.truth(self._guard(int(part))) is Truth.NO:
                return Truth.NO  # without the other parts
        return judge.truth(self._guard(number))

    def __getitem__(self, place: Any) -> Any:
        number, path, line, function, guard, here, passed, *caught = self._rows[place]
        form, _ = self.forms[number]
        arguments, guards = form.arguments, iter(passed)
        if arguments and passed:
            keywords = tuple((name, always or self._guard(next(guards))) for name, always in arguments.keywords)
            arguments = Arguments(arguments.positional, keywords, *arguments[2:])
        swallowed, effect, fallback, refused = caught or ((), "", False, ())
        return Use(
            form.kind, form.path, Site(path, line, function), self._guard(guard), self._guard(here), arguments,
            form.bound, tuple(swallowed), effect, fallback, tuple(refused), form.signature, form.unpacks,
        )  # fmt: skip

    def _read_guard(self, number: int) -> Guard:
        if not number:
            return True
        symbol, _, rest = self._guards[number].partition(" ")
        kind = KINDS[symbol]
        if kind is AllOf or kind is AnyOf:
            return kind(tuple(map(self._guard, map(int, rest.split(" ")))))
        if kind is Not:
            return Not(self._guard(int(rest)))
        return kind(*(rest.split(" ") if kind in (TeVersion, Takes) else [rest]))
