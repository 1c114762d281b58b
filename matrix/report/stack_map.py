"""The upgrade map: how every container and megatron-core release stand together, and what a night saw of it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from itertools import groupby, product
from typing import Any, Final, TypeVar

from matrix.catalog.cell import Cell
from matrix.catalog.failure import Axis, Failure, Level
from matrix.catalog.model import Catalog, Wheels
from matrix.catalog.versions import NONE, parse, spans
from matrix.check.answer import BreakingCalls, FailureInStack, Standing
from matrix.check.stack import ALIASES, AXES
from matrix.check.table import KNOWN_BREAK, Choice, StackTable
from matrix.store.trend import Pasts
from matrix.verdicts.record import SILENT, Record, Verdict

OCCURRED: Final = (Verdict.REPRODUCED, Verdict.REGRESSED)  # the verdicts of a case in which the failure occurred


class Colour(str, Enum):
    """The worst that is known of a pair, worst first. The value is the class of its cell on a page."""

    CLASH = "clash"
    WILL = "will"
    OPTIONS = "options"
    SILENT = "silent"
    VERSIONS = "versions"
    TESTED = "tested"
    UNTESTED = "untested"


MEANS: Final = {
    Colour.CLASH: "can't be installed together",
    Colour.WILL: "will break",
    Colour.OPTIONS: "breaks with certain options",
    Colour.SILENT: "silently different",
    Colour.VERSIONS: "breaks with some versions of what is not named",
    Colour.TESTED: "nothing known, tested in this night",
    Colour.UNTESTED: "nothing known, not tested",
}
SIGNS: Final = {Colour.CLASH: "\u00d7", Colour.VERSIONS: "?", Colour.TESTED: "\u2713", Colour.UNTESTED: "\u00b7"}
COUNTED: Final = {Colour.WILL: "!", Colour.OPTIONS: "", Colour.SILENT: "~"}  # before the number of failures
UNKNOWN: Final = "its packages are not known"
T = TypeVar("T")
MANY: Final = 3  # breaks with options in one pair that are shown darker
COLOURS: Final = {
    Standing.WILL_BREAK: Colour.WILL,
    Standing.WITH_OPTIONS: Colour.OPTIONS,
    Standing.SILENT: Colour.SILENT,
    Standing.WITH_VERSIONS: Colour.VERSIONS,
}


@dataclass(frozen=True)
class MapCell:
    """One pair. `count`: the failures and groups of calls of its colour.

    `level`: the highest at which the night supports the colour. `surprise`: a case of the pair is red in the night.
    """

    colour: Colour
    count: int = 0
    level: Level | None = None
    surprise: bool = False

    @property
    def marks(self) -> str:
        """Return its classes on a page."""
        many = "many" if self.colour is Colour.OPTIONS and self.count >= MANY else ""
        level = f"at-{self.level.value}" if self.level else ""
        return " ".join(filter(None, (self.colour.value, many, level, "surprise" if self.surprise else "")))

    @property
    def sign(self) -> str:
        """Return its text: it shows the colour, too."""
        return SIGNS.get(self.colour) or f"{COUNTED[self.colour]}{self.count}"


@dataclass(frozen=True)
class MapRow:
    """A container, a torch or a Transformer Engine: its name, what is known of it, its word, a cell for each column."""

    name: str
    about: str
    choice: Choice
    cells: tuple[MapCell, ...] = ()

    @property
    def unknown(self) -> bool:
        """Return whether it is a container whose packages the catalog does not know."""
        return self.about == UNKNOWN


@dataclass(frozen=True)
class MapGroup:
    """Rows of one kind, newest first; `first`: shown without being asked for."""

    name: str
    first: bool
    rows: tuple[MapRow, ...]


@dataclass(frozen=True)
class Seen:
    """The nights in which a failure occurred first and last, "" for none."""

    first: str = ""
    last: str = ""


@dataclass(frozen=True)
class Affected:
    """Containers and megatron-core releases, as spans, in which a failure or a call stands alike."""

    standing: Standing
    containers: str
    releases: str


@dataclass(frozen=True)
class MapCall:
    """One call that breaks, in all releases that make it: the exception, and the file and function of the call."""

    callee: str
    error: str
    site: str
    needs: str


@dataclass(frozen=True)
class StackMap:
    """The map, its table, and by failure: results (row, column -> verdict and level), nights, affected containers.

    `calls` has the affected containers of each call that level contract finds and that no failure states.
    """

    catalog: Catalog
    table: StackTable
    columns: tuple[str, ...]
    groups: tuple[MapGroup, ...]
    results: Mapping[str, Mapping[tuple[int, int], tuple[Verdict, Level]]]
    seen: Mapping[str, Seen]
    affected: Mapping[str, Sequence[Affected]]
    calls: Mapping[MapCall, Sequence[Affected]]

    def to_json(self) -> dict[str, Any]:
        """Return what the pages embed."""
        return {
            **self.table.to_json(),
            "columns": [f"mcore={one}" for one in self.columns],
            "colours": [COLOURS[one].value if one in COLOURS else Colour.UNTESTED.value for one in Standing],
            "titles": AXES,
            "newer": {
                "mcore": [f"mcore={one}" for one in self.columns],
                "te": [f"te={one.version}" for one in self.catalog.transformer_engine],
                "base": [
                    *(f"base={one.id}" for one in self.catalog.containers if one.torch and one.te),
                    *(f"torch={one.version}" for one in self.catalog.torch),
                ],
            },
            "aliases": ALIASES,
            "entries": [
                {
                    "id": one.id,
                    "title": one.title,
                    "fix": " ".join(one.fix.split()),
                    "workarounds": [each.text for each in one.workarounds],
                    "seen": [self.seen[one.id].first, self.seen[one.id].last] if one.id in self.seen else [],
                    "results": {
                        f"{row},{column}": f"{verdict.value} at level {level.value}"
                        for (row, column), (verdict, level) in self.results.get(one.id, {}).items()
                    },
                }
                for one in self.catalog.failures
            ],
        }


def stack_map(catalog: Catalog, table: StackTable, records: Sequence[Record], pasts: Pasts) -> StackMap:
    """Return the map of a catalog with the results of a night."""
    columns = tuple(one.version for one in catalog.megatron_core)
    groups = _groups(catalog, table)
    rows = [row for group in groups for row in group.rows]
    images = [one.id for one in sorted(catalog.containers, key=lambda one: one.id)]
    broken = _affected(known_breaks(table, images, columns), images, columns)
    results = _results(catalog, table, records, rows, columns)
    made = iter(
        replace(row, cells=tuple(_cells(table, number, row, columns, results))) for number, row in enumerate(rows)
    )
    return StackMap(
        catalog,
        table,
        columns,
        tuple(MapGroup(one.name, one.first, tuple(next(made) for _ in one.rows)) for one in groups),
        results,
        sightings(records, pasts),
        {str(one.id): broken.get(one.id, []) for one in catalog.failures},
        _affected(known_calls(table, images, columns), images, columns),
    )


def sightings(records: Sequence[Record], pasts: Pasts) -> dict[str, Seen]:
    """Return, by failure, the nights in which it occurred; a verdict from the cache is of the night that ran it."""
    found: dict[str, dict[int, str]] = {}
    for record in records:
        nights = {one.number: one.run for one in pasts.get(record.key, ()) if one.ran and one.verdict in OCCURRED}
        if record.verdict in OCCURRED and not nights:
            nights = {0: record.cached_from or record.run}
        found.setdefault(record.failure, {}).update(nights)
    return {failure: Seen(each[min(each)], each[max(each)]) for failure, each in found.items() if each}


def _affected(
    known: Mapping[tuple[str, T, Standing], Sequence[str]], images: Sequence[str], columns: Sequence[str]
) -> dict[T, list[Affected]]:
    """Return, by failure or call, where it is known among the containers, the worst first."""
    families = [list(each) for _, each in groupby(images, key=lambda one: one.partition("-")[0])]
    alike: dict[tuple[T, Standing, str], list[str]] = {}
    for (name, of, standing), releases in known.items():
        alike.setdefault((of, standing, spans(releases, columns)), []).append(name)
    found: dict[T, list[Affected]] = {}
    for (of, standing, text), some in sorted(alike.items(), key=lambda one: KNOWN_BREAK.index(one[0][1])):
        named = (spans({*some} & {*family}, family) for family in families)
        found.setdefault(of, []).append(Affected(standing, ", ".join(filter(None, named)), text))
    return found


def known_breaks(
    table: StackTable, images: Sequence[str], columns: Sequence[str]
) -> dict[tuple[str, str, Standing], list[str]]:
    """Return, by container, failure and how it stands there, the megatron-core releases with which it is known."""
    known: dict[tuple[str, str, Standing], list[str]] = {}
    for image, mcore in product(images, columns):
        for one in table.standing({"base": f"base={image}", "mcore": f"mcore={mcore}"}):
            if one.standing in KNOWN_BREAK:
                known.setdefault((image, one.failure.id, one.standing), []).append(mcore)
    return known


def known_calls(
    table: StackTable, images: Sequence[str], columns: Sequence[str]
) -> dict[tuple[str, MapCall, Standing], list[str]]:
    """Return, by container, call and how it stands there, the megatron-core releases in which it breaks."""
    known: dict[tuple[str, MapCall, Standing], list[str]] = {}
    for image, mcore in product(images, columns):
        for group in table.calls({"base": f"base={image}", "mcore": f"mcore={mcore}"})[0]:
            for one in group.findings:
                site = f"{one.call_site.path} {one.call_site.function}"
                call = MapCall(one.callee, f"{one.raised.type}: {one.message}", site, group.needs)
                releases = known.setdefault((image, call, group.standing), [])
                if mcore not in releases:  # one function may have several of these lines
                    releases.append(mcore)
    return known


def _groups(catalog: Catalog, table: StackTable) -> list[MapGroup]:
    bases = [word for word in table.values["base"] if word]
    images = [MapRow(word.removeprefix("base="), _about(table, catalog, word), {"base": word})
              for word in bases if word.startswith("base=")]  # fmt: skip
    torches = [MapRow(f"torch {word.removeprefix('torch=')}", "", {"base": word})
               for word in bases if word.startswith("torch=")]  # fmt: skip
    known = {f"te={one.version}" for one in catalog.transformer_engine}
    engines = [MapRow(f"TE {word.removeprefix('te=')}", "", {"te": word})
               for word in table.values["te"] if word in known]  # fmt: skip
    named = {
        "NVIDIA PyTorch": [one for one in images if one.name.startswith("ngc-")],
        "NeMo": [one for one in images if not one.name.startswith("ngc-")],
        "torch from PyPI": torches,
        "Transformer Engine from PyPI": engines,
    }
    return [
        MapGroup(name, place == 0, tuple(reversed(rows))) for place, (name, rows) in enumerate(named.items()) if rows
    ]


def _about(table: StackTable, catalog: Catalog, word: str) -> str:
    torch = catalog.cell(word.removeprefix("base=")).torch
    te = table.brought.get(word, {}).get("te", "").removeprefix("te=")
    named = [f"torch {torch}" if torch != NONE else "", f"TE {te}" if te else ""]
    return ", ".join(filter(None, named)) or UNKNOWN


def _results(
    catalog: Catalog, table: StackTable, records: Sequence[Record], rows: Sequence[MapRow], columns: Sequence[str]
) -> dict[str, dict[tuple[int, int], tuple[Verdict, Level]]]:
    """Return, by failure, the result for each pair: of its red cases, else at the highest level."""
    failures: dict[str, Failure] = {one.id: one for one in catalog.failures}
    places = {mcore: place for place, mcore in enumerate(columns)}
    ran = [one for one in records if one.failure in failures and one.verdict not in (*SILENT, Verdict.LEARNED)]
    found: dict[str, dict[tuple[int, int], tuple[Verdict, Level]]] = {}
    for record in sorted(ran, key=_weight):
        if record.cell.mcore in places:
            same = _same_stack(catalog, table, failures[record.failure], record.cell)
            for place, row in enumerate(rows):
                if same(row):
                    pair = place, places[record.cell.mcore]
                    found.setdefault(record.failure, {}).setdefault(pair, (record.verdict, record.level))
    return found


def _weight(record: Record) -> tuple[bool, bool, int]:
    """Sort red results first, then occurrences, then the highest level."""
    return record.verdict.colour != "red", record.verdict not in OCCURRED, -list(Level).index(record.level)


def _same_stack(catalog: Catalog, table: StackTable, failure: Failure, cell: Cell) -> Callable[[MapRow], bool]:
    """Return whether the result of a cell is one about a row: same base or its twin, same Transformer Engine."""
    base = catalog.bases.get(cell.base)
    words = {f"base={cell.base}"}
    if isinstance(base, Wheels):
        words = {f"torch={base.torch}", *(f"base={one.id}" for one in catalog.twins_of(base))}

    def same(row: MapRow) -> bool:
        te = row.choice.get("te") or table.brought.get(row.choice.get("base", ""), {}).get("te", "te=none")
        if Axis.BASE in failure.axes and row.choice.get("base") not in words:
            return False
        if Axis.TE not in failure.axes:
            return Axis.BASE in failure.axes or "base" in row.choice
        return NONE not in (known := te.removeprefix("te="), cell.te) and _public(known) == _public(cell.te)

    return same


@cache
def _public(version: str) -> str:
    return parse(version).public


def _cells(
    table: StackTable,
    number: int,
    row: MapRow,
    columns: Sequence[str],
    results: Mapping[str, Mapping[tuple[int, int], tuple[Verdict, Level]]],
) -> Iterator[MapCell]:
    for place, mcore in enumerate(columns):
        choice = {**row.choice, "mcore": f"mcore={mcore}"}
        standing = table.standing(choice)
        seen = {id: each[number, place] for id, each in results.items() if (number, place) in each}
        calls, _ = table.calls(choice)
        yield cell_of(standing, calls, clash=bool(table.clashing(choice)), seen=seen)


def cell_of(
    standing: Sequence[FailureInStack],
    calls: Sequence[BreakingCalls],
    *,
    clash: bool,
    seen: Mapping[str, tuple[Verdict, Level]],
) -> MapCell:
    """Return the cell of a pair; `seen` are the results of the night there, by failure."""
    surprise = any(verdict.colour == "red" for verdict, _ in seen.values())
    green = {id: level for id, (verdict, level) in seen.items() if verdict.colour == "green"}
    if clash:
        return MapCell(Colour.CLASH, surprise=surprise)
    every: list[FailureInStack | BreakingCalls] = [*standing, *calls]
    found = [(COLOURS[one.standing], one) for one in every if one.standing in COLOURS]
    colour = min(
        (each for each, _ in found), key=list(Colour).index, default=Colour.TESTED if green else Colour.UNTESTED
    )
    of = [one for each, one in found if each is colour]
    ids = {one.failure.id for one in of if isinstance(one, FailureInStack)}
    supports = [level for id, level in green.items() if not of or (id in ids and seen[id][0] in OCCURRED)]
    return MapCell(colour, len(of), max(supports, key=list(Level).index, default=None), surprise)
