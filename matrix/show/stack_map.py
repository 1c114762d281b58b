"""The upgrade map: how every container and megatron-core release stand together, and what a night saw of it. Pure."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from itertools import count, groupby, product
from typing import Any, Final, TypeAlias

from matrix.ask.check.remedies import CHANGES, CONTENTS, DRIVER_FIT, unaffected
from matrix.ask.check.rulings import KNOWN_BREAK, Standing
from matrix.ask.check.table import CHOSEN, Choice, StackAnswer, StackTable
from matrix.ground.catalog.failure import Failure, Level, Signature
from matrix.ground.catalog.model import Catalog, JobUse, Wheels
from matrix.ground.catalog.schema import longest_text
from matrix.ground.catalog.stack import (
    ABSENT,
    BASE,
    DECIDED,
    MCORE,
    TE,
    TORCH,
    WRITER,
    Cell,
    component_title,
    components,
    short,
)
from matrix.ground.catalog.versions import format_ranges, minor, parse
from matrix.ground.verdicts.record import SILENT, Record, Verdict
from matrix.ground.verdicts.trend import Pasts
from matrix.show.words import night_in_words

OCCURRED: Final = (Verdict.REPRODUCED, Verdict.REGRESSED)  # the verdicts of a case in which the failure occurred


class Colour(str, Enum):
    """What `megatrix check` answers of a pair, worst first. The value is the class of its cell on a page.

    OPTIONS is the colour of a pair without a certain break, once a reader ticks what the job uses: map.js sets it.
    """

    CLASH = "clash"
    BREAKS = "breaks"
    OPTIONS = "options"
    UNKNOWN = "unknown"
    READ = "read"
    TWIN = "twin"
    RUN = "run"


MEANS: Final = {
    Colour.CLASH: "can't be installed together",
    Colour.BREAKS: "breaks",
    Colour.OPTIONS: "breaks with what you use",
    Colour.UNKNOWN: "not known",
    Colour.READ: "no certain break: read, not run",
    Colour.TWIN: "no certain break: run in this night in its twin",
    Colour.RUN: "no certain break: run in this night",
}
SIGNS: Final = dict(zip(Colour, "\u00d7!o?\u00b7\u2248\u2713", strict=True))
COLOURS: Final = {  # of a failure that is not certain; one that is has the colour BREAKS
    Standing.WILL_BREAK: Colour.BREAKS,
    Standing.WITH_OPTIONS: Colour.OPTIONS,
    Standing.SILENT: Colour.OPTIONS,
    Standing.WITH_VERSIONS: Colour.UNKNOWN,
    Standing.UNKNOWN: Colour.UNKNOWN,
}
UNKNOWN: Final = "its packages are not known"
NEWEST: Final = 12  # rows and columns of the map that are shown at first; override: the box below it
RAN: Final = (Level.CPU, Level.GPU)  # a result at level contract is read, not run
_OPTION: Final = re.compile(r"--(?:no-)?([a-z0-9][a-z0-9-]*)")  # in what a break needs


@dataclass(frozen=True)
class NightResult:
    """A result of the night that is about a pair. `twin`: it ran in the twin of the image, not in the image."""

    verdict: Verdict
    level: Level
    twin: bool = False

    def __str__(self) -> str:
        return f"{self.verdict.value} at level {self.level.value}{', in its twin' * self.twin}"


# By failure: the most urgent result of the night for a pair, (row, column).
Results: TypeAlias = "Mapping[str, Mapping[tuple[int, int], NightResult]]"


@dataclass(frozen=True)
class MapCell:
    """One pair. `level`: the highest at which the night supports the colour. `surprise`: a case of it is red."""

    colour: Colour
    level: Level | None = None
    surprise: bool = False

    @property
    def marks(self) -> str:
        """Return its classes on a page."""
        level = f"at-{self.level.value}" if self.level else ""
        return " ".join(filter(None, (self.colour.value, level, "surprise" if self.surprise else "")))

    @property
    def sign(self) -> str:
        """Return its text: it shows the colour, too."""
        return SIGNS[self.colour]


@dataclass(frozen=True)
class MapRow:
    """A container, a torch or a Transformer Engine: its name, what is known of it, its word, a cell for each column."""

    name: str
    about: str
    axis: str
    word: str
    cells: tuple[MapCell, ...] = ()

    @property
    def unknown(self) -> bool:
        """Return whether it is a container whose packages the catalog does not know."""
        return self.about == UNKNOWN

    def choice(self, mcore: str) -> Choice:
        """Return the stack of its cell for a megatron-core release."""
        return {self.axis: self.word, "mcore": f"mcore={mcore}"}


@dataclass(frozen=True)
class Seen:
    """The nights in which a failure occurred first and last, "" for none."""

    first: str = ""
    last: str = ""


@dataclass(frozen=True)
class MapCall:
    """One call that breaks, in all releases that make it: the exception, and the file and function of the call."""

    callee: str
    error: str
    site: str
    needs: str


@dataclass(frozen=True)
class Affected:
    """Containers and megatron-core releases, as spans, in which a failure or a call stands alike."""

    standing: Standing
    containers: str
    releases: str


@dataclass(frozen=True)
class StackMap:
    """The map, its table, and by failure: results, nights, affected containers.

    `groups` are the rows of one kind by its name, newest first; a page shows the first group without being asked.
    `affected` also has the calls that level contract finds and that no failure states.
    """

    catalog: Catalog
    table: StackTable
    columns: tuple[str, ...]
    groups: Mapping[str, tuple[MapRow, ...]]
    results: Results
    seen: Mapping[str, Seen]
    affected: Mapping[str | MapCall, Sequence[Affected]]

    @property
    def images(self) -> list[MapRow]:
        """Return the rows of containers."""
        return [row for rows in self.groups.values() for row in rows if row.word.startswith("base=")]

    @property
    def newest(self) -> tuple[Sequence[MapRow], Sequence[tuple[int, str]]]:
        """Return the rows and the columns, with their places, that a page shows at first, the newest first."""
        rows: Sequence[MapRow] = next(iter(self.groups.values()), ())
        return rows[:NEWEST], list(enumerate(self.columns))[: -NEWEST - 1 : -1]

    def to_json(self) -> dict[str, Any]:
        """Return what the pages embed."""
        table = self.table.to_json()
        marks: dict[str, int] = {}
        return {
            **table,
            "columns": [f"mcore={mcore}" for mcore in self.columns],
            "groups": {
                group: [
                    [row.word, row.name, row.about, [marks.setdefault(cell.marks, len(marks)) for cell in row.cells]]
                    for row in rows
                ]
                for group, rows in self.groups.items()
            },
            "marks": list(marks),
            "signs": {colour.value: SIGNS[colour] for colour in Colour},
            "colours": [COLOURS.get(standing, Colour.READ).value for standing in Standing],
            "uses": [use.title for use in self.catalog.uses],
            "used": {
                number: uses for number, text in enumerate(table["texts"]) if (uses := uses_of(self.catalog.uses, text))
            },
            "titles": {
                **{axis: component_title(CHOSEN[axis][0]) for axis in CHOSEN},
                "base": "container",
                "torch": "torch",
            },
            "tags": {image.tag: f"base={image.id}" for image in self.catalog.containers},
            "asked": self._asked(),
            "upgrade": self._upgrade(),
            "aliases": _aliases(),
            "entries": [self._entry(failure) for failure in self.catalog.failures],
        }

    def _asked(self) -> str:
        """Return the stack that the page asks about at first: the newest known image, one minor before the newest."""
        image = next((row.word for row in self.images if not row.unknown), "")
        minors = [minor(mcore) for mcore in self.columns]
        earlier = [mcore for mcore, of in zip(self.columns, minors, strict=True) if of != minors[-1]]
        return " ".join(filter(None, (image, f"mcore={(earlier or self.columns)[-1]}")))

    def _upgrade(self) -> dict[str, Any]:
        """Return what a page needs besides the answers to judge newer versions, as `upgrades` does."""
        components = {"te": TE, "mcore": MCORE, "base": BASE, "torch": TORCH}
        known_images = [image for image in self.catalog.containers if image.torch and image.te]
        return {
            "components": components,
            "newer": {
                axis: [f"{axis}={version}" for version in newer]
                for axis, newer in {
                    "te": [release.version for release in self.catalog.transformer_engine],
                    "mcore": self.columns,
                    "base": [image.id for image in self.catalog.containers],
                    "torch": [release.version for release in self.catalog.torch],
                }.items()
            },
            "known": [f"base={image.id}" for image in known_images],
            "apart": {
                axis: self._places(unaffected(self.catalog, component)) for axis, component in components.items()
            },
            "changes": CHANGES,
            "contents": CONTENTS,
            "driver": DRIVER_FIT,
        }

    def _places(self, ids: Collection[str]) -> list[int]:
        return [place for place, failure in enumerate(self.catalog.failures) if failure.id in ids]

    def _entry(self, failure: Failure) -> dict[str, Any]:
        span = self.seen.get(failure.id)
        return {
            "id": failure.id,
            "title": failure.title,
            "threads": [thread.partition("/")[2] for thread in failure.references],
            "errors": sorted({one.exception for one in failure.signature if one.exception}),
            "texts": sorted({*map(_fixed_text, failure.signature)} - {""}),
            "fix": " ".join(failure.fix.split()),
            "workarounds": [workaround.text for workaround in failure.workarounds],
            "seen": [night_in_words(span.first), night_in_words(span.last)] if span else [],
            "results": {
                f"{row},{column}": str(result) for (row, column), result in self.results.get(failure.id, {}).items()
            },
        }


def stack_map(catalog: Catalog, table: StackTable, records: Sequence[Record], pasts: Pasts) -> StackMap:
    """Return the map of a catalog with the results of a night."""
    columns = tuple(release.version for release in catalog.megatron_core)
    groups = _groups(catalog, table)
    results = _results(catalog, table, records, [row for rows in groups.values() for row in rows], columns)
    numbers = count()
    coloured = {
        name: tuple(replace(row, cells=_cells(table, next(numbers), row, columns, results)) for row in rows)
        for name, rows in groups.items()
    }
    images = sorted(image.id for image in catalog.containers)
    affected = _affected(known(table, images, columns), images, columns)
    return StackMap(catalog, table, columns, coloured, results, sightings(records, pasts), affected)


def sightings(records: Sequence[Record], pasts: Pasts) -> dict[str, Seen]:
    """Return, by failure, the nights in which it occurred; a verdict from the cache is of the night that ran it."""
    nights: dict[str, dict[int, str]] = {}
    for record in records:
        occurred = {
            past.number: past.run for past in pasts.get(record.key, ()) if past.ran and past.verdict in OCCURRED
        }
        if record.verdict in OCCURRED and not occurred:
            occurred = {0: record.cached_from or record.run}
        nights.setdefault(record.failure, {}).update(occurred)
    return {failure: Seen(runs[min(runs)], runs[max(runs)]) for failure, runs in nights.items() if runs}


def _affected(
    known_releases: Mapping[tuple[str, str | MapCall, Standing], Sequence[str]],
    images: Sequence[str],
    columns: Sequence[str],
) -> dict[str | MapCall, list[Affected]]:
    """Return, by failure or call, where it is known among the containers, the worst first."""
    families = [list(family) for _, family in groupby(images, key=lambda image: image.partition("-")[0])]
    alike: dict[tuple[str | MapCall, Standing, str], list[str]] = {}
    for (image, subject, standing), releases in known_releases.items():
        alike.setdefault((subject, standing, format_ranges(releases, columns)), []).append(image)
    affected: dict[str | MapCall, list[Affected]] = {}
    for (subject, standing, text), containers in sorted(alike.items(), key=lambda item: KNOWN_BREAK.index(item[0][1])):
        names = filter(None, (format_ranges({*containers} & {*family}, family) for family in families))
        affected.setdefault(subject, []).append(Affected(standing, ", ".join(names), text))
    return affected


def known(
    table: StackTable, images: Sequence[str], columns: Sequence[str]
) -> dict[tuple[str, str | MapCall, Standing], list[str]]:
    """Return, by container, failure or call and how it stands there, the megatron-core releases in which it breaks."""
    releases: dict[tuple[str, str | MapCall, Standing], list[str]] = {}
    for image, mcore in product(images, columns):
        choice = {"base": f"base={image}", "mcore": f"mcore={mcore}"}
        stands: list[tuple[str | MapCall, Standing]] = [
            (failure.failure.id, failure.standing)
            for failure in table.standing(choice)
            if failure.standing in KNOWN_BREAK
        ]
        for calls in table.calls(choice)[0]:
            for finding in calls.findings:
                site = f"{finding.call_site.path} {finding.call_site.function}"
                error = f"{finding.error}: {finding.message}"
                stands.append((MapCall(finding.callee, error, site, calls.needs), calls.standing))
        for subject, standing in dict.fromkeys(stands):  # one function may have several lines of one call
            releases.setdefault((image, subject, standing), []).append(mcore)
    return releases


def _groups(catalog: Catalog, table: StackTable) -> dict[str, list[MapRow]]:
    releases = {f"te={release.version}" for release in catalog.transformer_engine}
    names = ("NVIDIA PyTorch", "NeMo", "torch from PyPI", "Transformer Engine from PyPI")
    groups: dict[str, list[MapRow]] = {name: [] for name in names}
    for word in reversed(table.values["base"]):
        kind, _, name = word.partition("=")
        if kind == "base":
            row = MapRow(name, _about(table, catalog, word), "base", word)
            groups["NVIDIA PyTorch" if name.startswith("ngc-") else "NeMo"].append(row)
        elif kind == "torch":
            groups["torch from PyPI"].append(MapRow(f"torch {name}", "", "base", word))
    groups["Transformer Engine from PyPI"] = [
        MapRow(f"TE {word.removeprefix('te=')}", "", "te", word)
        for word in reversed(table.values["te"])
        if word in releases
    ]
    return {name: rows for name, rows in groups.items() if rows}


def _about(table: StackTable, catalog: Catalog, word: str) -> str:
    torch = catalog.base(word.removeprefix("base=")).contents().version(TORCH)
    te = table.brought.get(word, {}).get("te", "").removeprefix("te=")
    return ", ".join([f"torch {torch}"] * bool(torch) + [f"TE {te}"] * bool(te)) or UNKNOWN


def _results(
    catalog: Catalog, table: StackTable, records: Sequence[Record], rows: Sequence[MapRow], columns: Sequence[str]
) -> Results:
    """Return the result for each pair: of its red cases, else at the highest level."""
    failures: dict[str, Failure] = {failure.id: failure for failure in catalog.failures}
    levels = list(Level)
    results: dict[str, dict[tuple[int, int], NightResult]] = {}
    # Red results first, then occurrences, then the highest level.
    for record in sorted(
        (record for record in records if record.verdict not in (*SILENT, Verdict.LEARNED)),
        key=lambda run: (run.verdict.colour != "red", run.verdict not in OCCURRED, -levels.index(run.level)),
    ):
        if record.failure in failures and (core := str(record.cell.stack[MCORE])) in columns:
            column = columns.index(core)
            is_about = _same_stack(catalog, table, failures[record.failure], record.cell)
            for number, row in enumerate(rows):
                if is_about(row):
                    pairs = results.setdefault(record.failure, {})
                    twin = row.axis == "base" and row.word != f"base={record.cell.base}"
                    pairs.setdefault((number, column), NightResult(record.verdict, record.level, twin))
    return results


def _same_stack(catalog: Catalog, table: StackTable, failure: Failure, cell: Cell) -> Callable[[MapRow], bool]:
    """Return whether the result of a cell is one about a row: same base or its twin, same Transformer Engine."""
    base = catalog.bases.get(cell.base)
    words = {f"base={cell.base}"}
    if isinstance(base, Wheels):
        words = {f"torch={base.torch}", *(f"base={image.id}" for image in catalog.twins_of(base))}

    def same(row: MapRow) -> bool:
        if BASE in failure.axes and row.word not in words:
            return False
        if TE not in failure.axes:
            return row.axis == "base"
        te = (row.word if row.axis == "te" else table.brought.get(row.word, {}).get("te", "")).removeprefix("te=")
        engine = cell.stack.version(TE)
        return engine is not None and te not in ("", str(ABSENT)) and _public(te) == _public(engine)

    return same


def _aliases() -> dict[str, str]:
    """Return other names of the components of a stack -> their short names."""
    aliases: dict[str, str] = {}
    for name in DECIDED[1:]:  # the base is chosen from a list
        spelled_out = [name] if short(name) != name and name not in WRITER else []
        aliases |= dict.fromkeys([*spelled_out, *components()[name].aliases], short(name))
    return aliases


@cache
def _public(version: str) -> str:
    return parse(version).public


def _fixed_text(signature: Signature) -> str:
    """Return the longest text that each message or log with a signature has."""
    return max((longest_text(pattern) for pattern in (signature.message or "", signature.log or "")), key=len)


def uses_of(uses: Sequence[JobUse], needs: str) -> list[int]:
    """Return the places of the uses that turn on the options which a break needs; one past the last: other options."""
    options = _OPTION.findall(needs)
    return sorted(
        {next((number for number, use in enumerate(uses) if _turns_on(use, option)), len(uses)) for option in options}
    )


def _turns_on(use: JobUse, option: str) -> bool:
    return any(fnmatch.fnmatchcase(option, pattern) for pattern in use.options)


def _cells(
    table: StackTable, number: int, row: MapRow, columns: Sequence[str], results: Results
) -> tuple[MapCell, ...]:
    cells = []
    for column, mcore in enumerate(columns):
        choice, pair = row.choice(mcore), (number, column)
        night = {failure: pairs[pair] for failure, pairs in results.items() if pair in pairs}
        cells.append(cell_of(table.answer(choice), night))
    return tuple(cells)


def cell_of(answer: StackAnswer, night: Mapping[str, NightResult]) -> MapCell:
    """Return the cell of a pair; `night` has the results of the night there, by failure."""
    surprise = any(result.verdict.colour == "red" for result in night.values())
    if answer.clashes:
        return MapCell(Colour.CLASH, surprise=surprise)
    green = {failure: result for failure, result in night.items() if result.verdict.colour == "green"}
    if answer.breaks:
        certain = {result.failure.id for result in answer.certain}
        levels = [
            result.level for failure, result in green.items() if failure in certain and result.verdict in OCCURRED
        ]
        return MapCell(Colour.BREAKS, _highest(levels), surprise)
    level = _highest([result.level for result in green.values()])
    if answer.unread:
        return MapCell(Colour.UNKNOWN, level, surprise)
    ran = [result.twin for result in green.values() if result.level in RAN]
    colour = Colour.READ if not ran else Colour.TWIN if all(ran) else Colour.RUN
    return MapCell(colour, level, surprise)


def _highest(levels: Sequence[Level]) -> Level | None:
    return max(levels, key=list(Level).index, default=None)
