"""What is said of a record, in one voice for the terminal, the page and JUnit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from packaging.version import Version

from matrix.catalog.cell import Cell
from matrix.verdicts.outcome import Outcome, OutcomeKind, Raised
from matrix.verdicts.record import SILENT, Record, Verdict
from matrix.verdicts.text import head, one_line, visible

# The verdicts, what needs a person first. A cell that holds several shows the first of them.
WORST_FIRST = (
    Verdict.UNEXPLAINED,
    Verdict.REGRESSED,
    Verdict.VANISHED,
    Verdict.NOT_REACHED,
    Verdict.UNAVAILABLE,
    Verdict.LEARNED,
    Verdict.REPRODUCED,
    Verdict.HOLDS,
)
MEANING = {
    Verdict.REPRODUCED: "broken as the catalog says, with this failure's signature",
    Verdict.HOLDS: "works as the catalog says",
    Verdict.LEARNED: "the catalog did not know; offered as a catalog change",
    Verdict.VANISHED: "passes where the catalog says broken: fixed, or the reproduction rotted",
    Verdict.REGRESSED: "this failure where the catalog says it works",
    Verdict.UNEXPLAINED: "fails, but not with this failure's signature",
    Verdict.UNAVAILABLE: "what it needs is not here; says nothing",
    Verdict.NOT_REACHED: "planned, but no result; says nothing",
}
# Frames shown of one exception, the innermost: deeper ones are the training loop's.
FRAMES = 15

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Headline:
    """The night in one line. `colour`: "red", "green", or "incomplete" where neither would be true.

    `beside` counts what said nothing and always stands next to `text`.
    """

    colour: str
    text: str
    beside: str


def headline(records: Sequence[Record]) -> Headline:
    """Return the night in one line; green only when nothing is red, nothing was lost and something ran."""
    counts = Counter(record.verdict.colour for record in records)
    total, red, lost, away = len(records), counts["red"], counts["not-reached"], counts["unavailable"]
    beside = f"{away} unavailable, {lost} not reached"
    if red:
        return Headline("red", f"{red} of {total} cases {'is' if red == 1 else 'are'} red", beside)
    if total == away + lost:
        return Headline("incomplete", f"none of {total} cases ran", beside)
    if lost:
        return Headline("incomplete", f"nothing is red, but {lost} of {total} cases were not reached", beside)
    return Headline("green", f"nothing is red in {total - away} cases that ran", beside)


def is_red(record: Record) -> bool:
    """Return whether a person has to look at this one."""
    return record.verdict.colour == "red"


def why(record: Record) -> str:
    """Return in one line, harmless and masked, why the verdict is what it is."""
    if record.verdict in SILENT:
        return one_line(record.outcome.reason) or "no reason was given"
    said = happened(record.outcome)
    if record.signature:
        said += f"; signature {record.signature}"
    if record.other:
        said += f"; matches the catalog's {record.other}"
    return said


def happened(outcome: Outcome) -> str:
    """Return in one line, harmless and masked, how a run ended."""
    rank = "" if outcome.rank is None else f"rank {outcome.rank} "
    said = {
        OutcomeKind.PASSED: "passed",
        OutcomeKind.RAISED: f"{rank}raised",
        OutcomeKind.SIGNALED: f"{rank}died by {outcome.signal}",
        OutcomeKind.EXITED: f"{rank}exited with {outcome.exit_code}",
        OutcomeKind.HUNG: f"{rank}hung",
        OutcomeKind.OUT_OF_MEMORY: f"{rank}ran out of memory",
    }.get(outcome.kind, outcome.kind.value)
    if outcome.chain:
        return one_line(f"{said}: {exception(outcome.chain[0])}")
    return one_line(f"{outcome.kind.value}: {outcome.reason}") if outcome.reason else said


def exception(raised: Raised) -> str:
    """Return an exception in one line; one without words (a bare assert) says where it stands."""
    if raised.message.strip():
        return one_line(f"{raised.type}: {raised.message}")
    if not raised.frames:
        return one_line(raised.type)
    frame = raised.frames[-1]
    return one_line(f"{raised.type} at {frame.file.rpartition('/')[2]}:{frame.line} {frame.function}")


def render_chain(chain: Sequence[Raised]) -> str:
    """Return a chain of exceptions with their frames, harmless and masked, root cause first."""
    blocks = []
    for raised in chain:
        left_out = max(len(raised.frames) - FRAMES, 0)
        lines = [head(f"{raised.type}: {raised.message}" if raised.message else raised.type)]
        lines += [f"    [... {left_out} outer frames left out]"] * bool(left_out)
        lines += [f"    {frame.file}:{frame.line} {frame.function}" for frame in raised.frames[left_out:]]
        blocks.append("\n".join(lines))
    return visible("\n\nwhich led to\n\n".join(blocks))


def label(cell: Cell, mcore: str | None = None) -> str:
    """Return the cell's id without the axes that play no part; `mcore` stands in for its Megatron version."""
    axes = (("mcore", mcore or cell.mcore), ("te", cell.te), ("driver", cell.driver))
    return visible("/".join([cell.base, *(f"{axis}-{value}" for axis, value in axes if value != "none")]))


def by(key: Callable[[Record], Key], records: Iterable[Record]) -> dict[Key, list[Record]]:
    """Group records, groups and members in the order they come."""
    groups: dict[Key, list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups


def worst(records: Iterable[Record]) -> Verdict:
    """Return the verdict that stands for several."""
    return min((record.verdict for record in records), key=WORST_FIRST.index)


@lru_cache(maxsize=4096)  # a night has some dozen versions and a hundred thousand records
def version_order(text: str) -> tuple[Any, ...]:
    """Return a sort key: PEP 440 versions as such, everything else (bases, revisions) by its words and numbers."""
    if text == "none":
        return (0,)
    try:
        return (1, Version(text))
    except ValueError:
        # Odd parts are the numbers, compared as such but never made one: a name may hold more digits than int() takes.
        parts = enumerate(re.split(r"(\d+)", text))
        return (2, [(len(part.lstrip("0")), part.lstrip("0")) if odd % 2 else part for odd, part in parts])


def row_order(cell: Cell) -> tuple[Any, ...]:
    """Return a sort key for rows: base, TE, driver, mcore."""
    return tuple(version_order(axis) for axis in (cell.base, cell.te, cell.driver, cell.mcore))
