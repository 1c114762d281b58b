"""The page of the night, with its matrix: a grid per failure and level; columns are Megatron versions.

The rows of a failure with a writer cell are writers, so its grid is writer x reader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from matrix.ground.catalog.failure import Failure, Level
from matrix.ground.catalog.stack import DRIVER, MCORE, TE, TORCH, short
from matrix.ground.verdicts.record import SILENT, Record, Verdict
from matrix.ground.verdicts.trend import NO_PASTS, Pasts, turns
from matrix.prove.store.stored_run import Night
from matrix.show.document import document
from matrix.show.known import size
from matrix.show.run_summary import Changes
from matrix.show.stack_map import Seen, StackMap
from matrix.show.words import (
    WORST_FIRST,
    beside_mcore,
    causes,
    group_by,
    headline,
    is_red,
    row_order,
    silent,
    verdict_counts,
    version_order,
    worst,
)


@dataclass(frozen=True)
class GridCell:
    """The most urgent verdict of the cases in a cell, a link to its evidence, and how many of them have it.

    `link` is "" where none is published. `title` names every case; `share` is "" where all have the same verdict.
    """

    verdict: Verdict
    link: str
    title: str
    share: str

    @property
    def name(self) -> str:
        """The accessible name; it contains the visible text of the link, as voice control requires."""
        return f"{self.title}; {self.share}" if self.share else self.title


@dataclass(frozen=True)
class Grid:
    """The results of a failure at one level.

    `never_run`: the levels above the highest at which it has ever run on this machine; `notes` counts the notes of its
    records. A row is a base, its other axes as text, and a cell for each column, None where nothing is planned.
    """

    failure: str
    level: Level
    cases: tuple[str, ...]
    never_run: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, str, tuple[GridCell | None, ...]], ...]
    notes: Mapping[str, int]


def grids(records: Sequence[Record], links: Mapping[str, str], levels: Mapping[str, frozenset[Level]]) -> list[Grid]:
    """Return the grids of all failures.

    `links`: case key -> link to its evidence; `levels`: the levels at which each failure has ever run on this machine.
    """
    groups = group_by(lambda record: (record.failure, record.level), records)
    return [_grid(groups[key], links, levels.get(key[0], frozenset())) for key in sorted(groups)]


def _grid(records: Sequence[Record], links: Mapping[str, str], ran: frozenset[Level]) -> Grid:
    order = list(Level)
    never_run = order[max((order.index(level) + 1 for level in ran), default=0) :]
    columns = sorted({str(record.cell.stack[MCORE]) for record in records}, key=version_order)
    rows = group_by(
        lambda record: (record.cell.base, record.cell.stack[TORCH], *beside_mcore(record.cell).items()),
        sorted(records, key=lambda record: row_order(record.cell)),
    )
    return Grid(
        records[0].failure,
        records[0].level,
        tuple(dict.fromkeys(record.case for record in records)),
        tuple(level.value for level in never_run),
        tuple(columns),
        tuple(_row(members, columns, links) for members in rows.values()),
        Counter(note for record in records for note in record.notes),
    )


def _row(
    records: Sequence[Record], columns: Sequence[str], links: Mapping[str, str]
) -> tuple[str, str, tuple[GridCell | None, ...]]:
    cell = records[0].cell
    torch = str(cell.stack[TORCH])
    axes = {"torch": torch if torch not in cell.base else "none", **beside_mcore(cell)}
    cells = group_by(lambda record: str(record.cell.stack[MCORE]), records)
    return (
        cell.base,
        ", ".join(f"{axis} {value}" for axis, value in axes.items() if value != "none"),
        tuple(_cell(cells[mcore], links) if mcore in cells else None for mcore in columns),
    )


def _cell(records: Sequence[Record], links: Mapping[str, str]) -> GridCell:
    verdict, cell = worst(records), records[0].cell
    leading = [record for record in records if record.verdict is verdict]
    cases = ", ".join(f"{record.case} {record.verdict.value}" for record in records)
    share = f"{len(leading)} of {len(records)}" if len(leading) < len(records) else ""
    return GridCell(verdict, links[leading[0].key], f"{cell.base}, mcore {cell.stack[MCORE]}: {cases}", share)


# The cell axes with a filter, each shown only if the records have more than one value. index.html.j2 names them in the
# rows that the filters hide.
AXES: Final = (MCORE, TE, DRIVER)


@dataclass(frozen=True)
class FailureRow:
    """One failure of the run: its verdicts, most urgent first, its grids, and the run of its last change ("": none).

    `title` and `fix` are those of its entry. `order` sorts the rows: red ones first, then by the last change.
    """

    failure: str
    title: str
    fix: str
    seen: Seen
    counts: Mapping[Verdict, int]
    grids: Sequence[Grid]
    changed: str
    order: tuple[bool, int, str]

    @property
    def tested(self) -> bool:
        """Return whether a case of it has a result."""
        return any(verdict not in SILENT for verdict in self.counts)

    @property
    def red(self) -> bool:
        """Return whether a case of it is red."""
        return any(verdict.colour == "red" for verdict in self.counts)


def page(
    night: Night,
    changes: Changes,
    levels: Mapping[str, frozenset[Level]],
    map: StackMap,
    bisections: Sequence[str] = (),
    pasts: Pasts = NO_PASTS,
) -> str:
    """Return the page.

    `levels`: the levels at which each failure has ever run on this machine; `map`: the upgrade map with this night;
    `bisections`: names of bisection pages; `pasts`: the results of each case in earlier nights.
    """
    records, anchors = night.records, anchors_of(night.records)
    matrices = grids(records, {key: f"#{anchor}" for key, anchor in anchors.items()}, levels)
    new, rows = changes.newly_red, _failures(records, matrices, pasts, map)
    return document(
        "index.html.j2",
        night=night,
        summary=headline(records, night.missing),
        counts=verdict_counts(records),
        changes=changes,
        anchors=anchors,
        causes=sorted(  # newly red causes first
            causes(records).values(),
            key=lambda reds: (not any(red.key in new for red in reds), WORST_FIRST.index(reds[0].verdict)),
        ),
        failures=rows,
        tested=len({row.failure for row in rows if row.tested} & {entry.id for entry in map.catalog.known_failures}),
        size=size(map.catalog),
        silent=silent(records),
        choices=_choices(records),
        bisections=bisections,
    )


def anchors_of(records: Sequence[Record]) -> dict[str, str]:
    """Return the HTML id of each case on the page: case key -> id."""
    return {record.key: f"{'red' if is_red(record) else 'case'}-{n}" for n, record in enumerate(records, start=1)}


def _failures(records: Sequence[Record], matrices: Sequence[Grid], pasts: Pasts, map: StackMap) -> list[FailureRow]:
    rows = []
    entries: dict[str, Failure] = {entry.id: entry for entry in map.catalog.failures}
    for failure, members in group_by(lambda record: record.failure, records).items():
        changes = [past for record in members for _, past, _ in turns(pasts.get(record.key, ()))]
        number, run = max(((past.number, past.run) for past in changes), default=(0, ""))
        entry = entries.get(failure)  # an older run may have a failure that the catalog no longer has
        rows.append(
            FailureRow(
                failure,
                entry.title if entry else "",
                " ".join(entry.fix.split()) if entry else "",
                map.seen.get(failure, Seen()),
                verdict_counts(members),
                [grid for grid in matrices if grid.failure == failure],
                run,
                (not any(is_red(record) for record in members), -number, failure),
            )
        )
    return sorted(rows, key=lambda row: row.order)


def _choices(records: Sequence[Record]) -> dict[str, list[str]]:
    """Return the values of each filter."""
    verdicts = {record.verdict for record in records}
    levels = {record.level for record in records}
    values = {"base": {record.cell.base for record in records}}
    values |= {short(name): {str(record.cell.stack[name]) for record in records} for name in AXES}
    axes = {axis: sorted(sorted(texts), key=version_order) for axis, texts in values.items()}
    return {
        "verdict": ["red"] * any(map(is_red, records)) + [name.value for name in WORST_FIRST if name in verdicts],
        "failure": sorted({record.failure for record in records}),
        "level": [level.value for level in Level if level in levels],
        **{axis: values for axis, values in axes.items() if len(values) > 1},
    }
