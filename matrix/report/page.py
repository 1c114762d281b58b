"""The page of the night."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from matrix.catalog.failure import Level
from matrix.report.changes import Changes
from matrix.report.document import document
from matrix.report.grid import grids
from matrix.report.words import WORST_FIRST, group_by, headline, is_red, verdict_reason, version_order
from matrix.store.night import Night
from matrix.verdicts.record import SILENT, Record

# The cell axes with a filter, each shown only if the records have more than one value. index.html.j2 names them in the
# rows that the filters hide.
AXES: Final = ("base", "mcore", "te", "driver")


def page(night: Night, changes: Changes, levels: Mapping[str, frozenset[Level]], bisections: Sequence[str] = ()) -> str:
    """Return the page.

    `levels`: the levels at which each failure has ever run on this machine; `bisections`: names of bisection pages.
    """
    records, anchors = night.records, anchors_of(night.records)
    silent = group_by(
        lambda record: (record.verdict, verdict_reason(record)), (each for each in records if each.verdict in SILENT)
    )
    return document(
        "index.html.j2",
        night=night,
        summary=headline(records, night.missing),
        counts=Counter(record.verdict for record in records),
        changes=changes,
        anchors=anchors,
        causes=_causes(records, changes.newly_red),
        grids=grids(records, {key: f"#{anchor}" for key, anchor in anchors.items()}, levels),
        silent=sorted(silent.items(), key=lambda group: -len(group[1])),
        choices=_choices(records),
        bisections=bisections,
    )


def anchors_of(records: Sequence[Record]) -> dict[str, str]:
    """Return the HTML id of each case on the page: case key -> id."""
    return {record.key: f"{'red' if is_red(record) else 'case'}-{n}" for n, record in enumerate(records, start=1)}


def _causes(records: Sequence[Record], new: frozenset[str]) -> list[list[Record]]:
    """Return the red cases by cause, which is a failure, a verdict and its reason; newly red causes first."""
    causes = group_by(lambda red: (red.failure, red.verdict, verdict_reason(red)), filter(is_red, records))
    return sorted(
        causes.values(),
        key=lambda reds: (not any(red.key in new for red in reds), WORST_FIRST.index(reds[0].verdict)),
    )


def _choices(records: Sequence[Record]) -> dict[str, list[str]]:
    """Return the values of each filter."""
    verdicts = {record.verdict for record in records}
    levels = {record.level for record in records}
    axes = {axis: sorted({getattr(record.cell, axis) for record in records}, key=version_order) for axis in AXES}
    return {
        "verdict": ["red"] * any(map(is_red, records)) + [one.value for one in WORST_FIRST if one in verdicts],
        "failure": sorted({record.failure for record in records}),
        "level": [level.value for level in Level if level in levels],
        **{axis: values for axis, values in axes.items() if len(values) > 1},
    }
