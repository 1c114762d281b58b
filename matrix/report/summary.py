"""The night in the terminal: pure functions from records to text of at most `width` columns.

Only commands (reproduce) may be wider: a cut command would not run.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from matrix.catalog.failure import Level
from matrix.report.words import (
    MEANING,
    NONE_MISSING,
    WORST_FIRST,
    group_by,
    headline,
    is_red,
    label,
    row_order,
    verdict_reason,
)
from matrix.verdicts.record import SILENT, Record, Verdict
from matrix.verdicts.text import one_line, shorten, visible

SAMPLE = 5  # cases that have to run before the remaining time is shown
DRIVERS = ("host driver", "user-mode driver")  # in Record.resolved; not used below level gpu
WIDTH = 80  # columns, if the terminal's width is unknown
_SGR = {"green": "32", "red": "1;31", "learned": "36", "unavailable": "33", "not-reached": "35", "incomplete": "33"}


def colour_wanted(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Return whether to colour output to `stream`: it is a terminal, TERM is not "dumb" and NO_COLOR is not set."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def summary(
    records: Sequence[Record], missing: Mapping[str, str] = NONE_MISSING, *, width: int = WIDTH, colour: bool = False
) -> str:
    """Return the summary: red cases with reason and command, tables, cases without a result, counts, headline.

    The headline comes last, where a terminal shows it without scrolling.
    """
    silent = [record for record in records if record.verdict in SILENT]
    tables = group_by(
        lambda record: (record.failure, record.level), sorted(records, key=lambda each: row_order(each.cell))
    )
    parts = [
        *_reds([record for record in records if is_red(record)], width, colour),
        *filter(None, (_table(members, width, colour) for _, members in sorted(tables.items()))),
        "\n".join(_silent(silent, width, colour)),
        "\n".join(_wrapped(text, width, indent=2) for text in _drivers(records)),
        _closing(records, missing, width, colour),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


class Progress:
    """A line for each case that ends; plain lines, readable in a log file too.

    [ 3/24] dud-assertion tp2 cpu torch-2.4.0/mcore-0.8.0 reproduced 1.1 s, 2 min to go

    With a `clock` (s) a line ends with the remaining time, extrapolated from the cases that ran so far.
    """

    def __init__(
        self, total: int, *, width: int = WIDTH, colour: bool = False, clock: Callable[[], float] | None = None
    ) -> None:
        self._total, self._width, self._colour, self._done = total, width, colour, 0
        self._clock, self._ran, self._began = clock, 0, clock() if clock else 0.0
        self._running: dict[str, None] = {}

    def line(self, record: Record) -> str:
        """Count the case as done and return its line; a red case has a second line with the reason."""
        self._done += 1
        self._running.pop(record.key, None)
        count = f"[{self._done:>{len(str(self._total))}}/{self._total}]"
        duration = f"from {record.cached_from}" if record.cached_from else f"{record.outcome.seconds:.1f} s"
        ahead = f"{count} {record.failure} {record.case} {record.level.value} "
        behind = f" {record.verdict.value} {one_line(duration)}{self._to_go(record)}"
        cell = shorten(label(record.cell), max(self._width - len(ahead) - len(behind), 12))
        painted = _paint(record.verdict.value, record.verdict.colour, self._colour)
        line = ahead + cell + behind.replace(record.verdict.value, painted, 1)
        if is_red(record):
            line += "\n" + _wrapped(verdict_reason(record), self._width, indent=len(count) + 1)
        return line

    def begin(self, key: str) -> None:
        """Count a case as running."""
        self._running[key] = None

    def now(self) -> str:
        """Return the running cases in one line that leaves the last column free; "" if none is running."""
        return shorten(one_line(f"now: {', '.join(self._running)}"), self._width - 1) if self._running else ""

    def _to_go(self, record: Record) -> str:
        """Return the remaining time, "" until SAMPLE cases ran; cached cases and those without a result don't count."""
        self._ran += record.verdict not in SILENT and not record.cached_from
        left = self._total - self._done
        if self._clock is None or self._ran < SAMPLE or not left:
            return ""
        return f", {_rough((self._clock() - self._began) / self._ran * left)} to go"


def _rough(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _reds(reds: Sequence[Record], width: int, colour: bool) -> list[str]:
    """Return a paragraph per cause: the cause, then each of its cases with the command that reproduces it."""
    blocks = []
    for (failure, verdict, cause), members in group_by(
        lambda red: (red.failure, red.verdict, verdict_reason(red)), reds
    ).items():
        count = f" x {len(members)}" if len(members) > 1 else ""
        title = f"{verdict.value.upper()} {failure}{count}"
        lines = [title.replace(verdict.value.upper(), _paint(verdict.value.upper(), "red", colour), 1)]
        lines += [_wrapped(text, width, indent=2) for text in (cause, f"({MEANING[verdict]})")]
        for red in members:
            lines.append(f"  {shorten(f'{label(red.cell)} {red.case} {red.level.value}', width - 2)}")
            lines.extend(_wrapped(f"note: {one_line(note)}", width, indent=4) for note in red.notes)
            lines.extend(_wrapped(text, width, indent=4) for text in _drivers([red]))
            lines.append(f"    {' '.join(visible(red.reproduce).split())}")
        blocks.append("\n".join(lines))
    return blocks


def _drivers(records: Sequence[Record]) -> list[str]:
    """Return the drivers of the cases at level gpu, one line for each combination."""
    texts = (
        ", ".join(f"{name} {record.resolved[name]}" for name in DRIVERS if name in record.resolved)
        for record in records
        if record.level is Level.GPU
    )
    counts = Counter(filter(None, texts))
    return [f"{one_line(text)}{f' x {count}' if len(records) > 1 else ''}" for text, count in counts.items()]


def _table(records: Sequence[Record], width: int, colour: bool) -> str:
    """Return the table of one failure at one level: cells as rows; cases as columns, or counts if they don't fit.

    Rows that differ only in the Megatron version are merged. Cells without any result are omitted; `_silent` lists
    them.
    """
    cases = list(dict.fromkeys(record.case for record in records))
    rows: list[tuple[str, list[Record]]] = []
    spans: list[list[list[Record]]] = []  # per row of the table: the cells merged into it
    for members in group_by(lambda record: record.cell.id, records).values():
        if all(record.verdict in SILENT for record in members):
            continue
        if spans and _alike(spans[-1][-1], members):
            spans[-1].append(members)
        else:
            spans.append([members])
    for span in spans:
        first, last = span[0][0].cell, span[-1][0].cell
        name = label(first) if len(span) == 1 else f"{label(first, f'{first.mcore}..{last.mcore}')} ({len(span)})"
        rows.append((name, [record for members in span for record in members]))
    if not rows:
        return ""
    title = f"{records[0].failure}, level {records[0].level.value}"
    columns = {
        case: max(len(case), *(len(record.verdict.value) for record in records if record.case == case))
        for case in cases
    }
    left = max(len(name) for name, _ in rows)
    room = width - 2 - sum(size + 2 for size in columns.values())
    if left <= room:
        head = " " * left + "".join(f"  {case:<{size}}" for case, size in columns.items())
        lines = [title, "  " + head.rstrip()]
        for name, members in rows:
            verdicts = {record.case: record.verdict for record in members}
            cells = (_cell(verdicts.get(case), size, colour) for case, size in columns.items())
            lines.append(f"  {name:<{left}}" + "".join(cells))
        return "\n".join(line.rstrip() for line in lines)
    lines = [title]
    for name, members in rows:
        lines.append("  " + shorten(name, width - 2))
        lines.append(_counts(members, width, 4, colour))
    return "\n".join(lines)


def _alike(one: Sequence[Record], other: Sequence[Record]) -> bool:
    cells = [(group[0].cell.base, group[0].cell.te, group[0].cell.driver) for group in (one, other)]
    verdicts = [[(record.case, record.verdict) for record in group] for group in (one, other)]
    return cells[0] == cells[1] and verdicts[0] == verdicts[1]


def _cell(verdict: Verdict | None, size: int, colour: bool) -> str:
    word = verdict.value if verdict else "-"
    return "  " + _paint(word, verdict.colour if verdict else "", colour) + " " * (size - len(word))


def _silent(records: Sequence[Record], width: int, colour: bool) -> list[str]:
    """Return one line per reason for a missing result."""
    groups = group_by(lambda record: (record.verdict, verdict_reason(record)), records)
    lines = []
    for (verdict, reason), members in sorted(groups.items(), key=lambda item: -len(item[1])):
        text = _wrapped(f"{verdict.value} x {len(members)}: {reason}", width, indent=0, hang=2)
        lines.append(text.replace(verdict.value, _paint(verdict.value, verdict.colour, colour), 1))
    return lines


def _closing(records: Sequence[Record], missing: Mapping[str, str], width: int, colour: bool) -> str:
    night = headline(records, missing)
    lines = [_counts(records, width, 0, colour)] if records else []
    text = _wrapped(f"{night.colour.upper()}: {night.text}; {night.no_result}", width, indent=0)
    return "\n".join(
        [*lines, text.replace(night.colour.upper(), _paint(night.colour.upper(), night.colour, colour), 1)]
    )


def _counts(records: Sequence[Record], width: int, indent: int, colour: bool) -> str:
    counts = Counter(record.verdict for record in records)
    # A no-break space keeps number and word on one line; colours are added after wrapping, because they have no width.
    text = ", ".join(f"{counts[verdict]}\u00a0{verdict.value}" for verdict in WORST_FIRST if counts[verdict])
    text = _wrapped(text, width, indent=indent).replace("\u00a0", " ")
    words = {verdict.value: verdict.colour for verdict in counts}
    return re.sub(r"[a-z-]+", lambda word: _paint(word[0], words[word[0]], colour), text)


def _wrapped(text: str, width: int, *, indent: int, hang: int | None = None) -> str:
    before, hanging = " " * indent, " " * (indent if hang is None else hang)
    return textwrap.fill(text, width, initial_indent=before, subsequent_indent=hanging, break_on_hyphens=False)


def _paint(word: str, colour: str, enabled: bool) -> str:
    return f"\x1b[{_SGR[colour]}m{word}\x1b[0m" if enabled and colour in _SGR else word
