"""The night in the terminal: from records to parts of the output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.stack import MCORE
from matrix.ground.verdicts.record import SILENT, Record, Verdict
from matrix.ground.verdicts.text import one_line, visible
from matrix.show.terminal import RED, Alternative, Part, Prose, Styled, table, text
from matrix.show.words import (
    MEANING,
    NONE_MISSING,
    beside_mcore,
    causes,
    group_by,
    headline,
    label,
    row_order,
    silent,
    verdict_counts,
)

DRIVERS = ("host driver", "user-mode driver")  # in Record.resolved; not used below level gpu
# Styles of rich for the colours of verdicts and of the night.
STYLES: Final = {
    "green": "green",
    "red": RED,
    "learned": "cyan",
    "unavailable": "yellow",
    "not-reached": "magenta",
    "incomplete": "yellow",
    "": "",
}


def summary(records: Sequence[Record], missing: Mapping[str, str] = NONE_MISSING) -> Iterator[Part]:
    """Yield the summary: red cases with reason and command, tables, cases that were not reached, counts, headline.

    The headline comes last, where a terminal shows it without scrolling.
    """
    tables = group_by(
        lambda record: (record.failure, record.level), sorted(records, key=lambda each: row_order(each.cell))
    )
    blocks: tuple[list[Part], ...] = (
        *_reds(records),
        *(_table(members) for _, members in sorted(tables.items())),
        without_result(records),
        [Prose(drivers, 2) for drivers in _drivers(records)],
    )
    for block in filter(None, blocks):
        yield from (*block, "")
    night = headline(records, missing)
    if records:
        yield text(*_counts(records))
    yield text((night.colour.upper(), STYLES[night.colour]), f": {night.text}; {night.sources}")


def without_result(records: Sequence[Record]) -> list[Part]:
    """Return a line for each reason for which cases have no result."""
    return [
        table([(text(styled(verdict), f" x {len(members)}:"), reason)])
        for (verdict, reason), members in silent(records)
    ]


def _reds(records: Sequence[Record]) -> Iterator[list[Part]]:
    """Yield a block per cause: the cause, then each of its cases with the command that reproduces it."""
    for (failure, verdict, cause), members in causes(records).items():
        count = f" x {len(members)}" if len(members) > 1 else ""
        block: list[Part] = [
            text((verdict.value.upper(), RED), f" {failure}{count}"),
            Prose(cause, 2),
            Prose(f"({MEANING[verdict]})", 2),
        ]
        for red in members:
            block.append(f"  {label(red.cell)} {red.case} {red.level.value}")
            block += [table([("note:", one_line(note))], indent=4) for note in red.notes]
            block += [Prose(drivers, 4) for drivers in _drivers([red])]
            block.append(f"    {' '.join(visible(red.reproduce).split())}")
        yield block


def styled(verdict: Verdict) -> tuple[str, str]:
    """Return a verdict's name and its style."""
    return verdict.value, STYLES[verdict.colour]


def _drivers(records: Sequence[Record]) -> list[str]:
    """Return the drivers of the cases at level gpu, one line for each combination."""
    texts = (
        ", ".join(f"{name} {record.resolved[name]}" for name in DRIVERS if name in record.resolved)
        for record in records
        if record.level is Level.GPU
    )
    counts = Counter(filter(None, texts))
    return [f"{one_line(drivers)}{f' x {count}' if len(records) > 1 else ''}" for drivers, count in counts.items()]


def _table(records: Sequence[Record]) -> list[Part]:
    """Return the table of one failure at one level: cells as rows; cases as columns, or counts if they don't fit.

    Rows that differ only in the Megatron version are merged. Cells without any result are omitted; the summary lists
    them.
    """
    cases = list(dict.fromkeys(record.case for record in records))
    spans: list[list[list[Record]]] = []  # per row of the table: the cells merged into it
    for members in group_by(lambda record: record.cell.id, records).values():
        if all(record.verdict in SILENT for record in members):
            continue
        if spans and _row_of(spans[-1][-1]) == _row_of(members):
            spans[-1].append(members)
        else:
            spans.append([members])
    if not spans:
        return []
    rows: list[list[str | Styled]] = []
    narrow: list[Part] = []
    for span in spans:
        oldest, newest = span[0][0].cell, span[-1][0].cell
        name = (
            label(oldest)
            if len(span) == 1
            else f"{label(oldest, f'{oldest.stack[MCORE]}..{newest.stack[MCORE]}')} ({len(span)})"
        )
        members = [record for members in span for record in members]
        verdicts = {record.case: styled(record.verdict) for record in members}
        rows.append([name, *(text(verdicts.get(case, "-")) for case in cases)])
        narrow += [f"  {name}", text("    ", *_counts(members))]
    title = f"{records[0].failure}, level {records[0].level.value}"
    return [title, Alternative(table(rows, ["", *cases], indent=2, gap=2), tuple(narrow))]


def _row_of(records: Sequence[Record]) -> tuple[object, ...]:
    """Return what the row of a cell has in common with those that are merged into it."""
    cell = records[0].cell
    return cell.base, beside_mcore(cell), [(record.case, record.verdict) for record in records]


def _counts(records: Sequence[Record]) -> Iterator[str | tuple[str, str]]:
    """Yield the number of cases of each verdict, worst first."""
    for number, (verdict, count) in enumerate(verdict_counts(records).items()):
        yield f"{', ' * bool(number)}{count} "
        yield styled(verdict)
