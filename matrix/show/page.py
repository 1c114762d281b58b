"""The page of the night."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from matrix.ground.catalog.failure import Failure, Level
from matrix.ground.catalog.stack import DRIVER, MCORE, TE, short
from matrix.ground.verdicts.record import SILENT, Record, Verdict
from matrix.ground.verdicts.trend import NO_PASTS, Pasts, turns
from matrix.prove.store.stored_run import Night
from matrix.show.changes import Changes
from matrix.show.document import document
from matrix.show.grid import Grid, grids
from matrix.show.known import size
from matrix.show.stack_map import Seen, StackMap
from matrix.show.words import WORST_FIRST, causes, group_by, headline, is_red, silent, verdict_counts, version_order

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
    axes = {axis: sorted(texts, key=version_order) for axis, texts in values.items()}
    return {
        "verdict": ["red"] * any(map(is_red, records)) + [name.value for name in WORST_FIRST if name in verdicts],
        "failure": sorted({record.failure for record in records}),
        "level": [level.value for level in Level if level in levels],
        **{axis: values for axis, values in axes.items() if len(values) > 1},
    }
