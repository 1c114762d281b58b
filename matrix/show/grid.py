"""The matrix: a grid per failure and level; columns are Megatron versions, rows the other axes of its cells.

The rows of a failure with a writer cell are writers, so its grid is writer x reader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.stack import MCORE, TORCH
from matrix.ground.verdicts.record import Record, Verdict
from matrix.show.words import beside_mcore, group_by, row_order, version_order, worst


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
