"""Texts about a record that the terminal, the pages, JUnit and Markdown share."""

from __future__ import annotations

import re
from calendar import month_name
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from types import MappingProxyType
from typing import Any, Final, TypeVar

from packaging.version import Version

from matrix.ground.catalog.stack import MCORE, Cell
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind, Raised
from matrix.ground.verdicts.record import SILENT, Record, Verdict
from matrix.ground.verdicts.text import head, one_line, visible
from matrix.ground.verdicts.trend import PastResult

# The verdicts, most urgent first. A grid cell with several verdicts shows the first of them.
MEANING: Final = {
    Verdict.UNEXPLAINED: "fails without this failure's signature",
    Verdict.REGRESSED: "fails with this failure's signature, but was expected to pass",
    Verdict.VANISHED: "passes, but was expected to fail: fixed, or the reproduction no longer works",
    Verdict.NOT_REACHED: "planned, but not finished; no result",
    Verdict.UNAVAILABLE: "a requirement is missing; no result",
    Verdict.LEARNED: "no rule in the catalog; the result is offered as a catalog change",
    Verdict.REPRODUCED: "fails as expected, with this failure's signature",
    Verdict.HOLDS: "passes as expected",
}
WORST_FIRST: Final = tuple(MEANING)
# Frames shown of one exception, the innermost ones: the outer ones are the training loop's.
FRAMES = 15
NONE_MISSING: Final[Mapping[str, str]] = MappingProxyType({})

# The release that a case needs, in the reason of a case without a result.
NEEDED: Final = re.compile(r"^(needs [^;:]*?) (\d+(?:\.\d+)+)(?=[;:])")
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Headline:
    """The night in one line. `colour`: "red", "green", or "incomplete" when neither applies.

    `sources` counts the cases that ran, came from the cache and have no result; it is always shown next to `text`.
    """

    colour: str
    text: str
    sources: str


def headline(records: Sequence[Record], missing: Mapping[str, str] = NONE_MISSING) -> Headline:
    """Return the night in one line.

    It is green only if nothing is red, every case was reached, at least one has a result, and no level is `missing`
    (level -> the last night in which it ran).
    """
    counts = Counter(record.verdict.colour for record in records)
    total, red, lost, unavailable = len(records), counts["red"], counts["not-reached"], counts["unavailable"]
    cached = Counter(record.cached_from for record in records if record.cached_from)
    runs = " and ".join(cached) if len(cached) < 3 else f"{len(cached)} runs"
    from_cache = f"{cached.total()} from the cache of {runs}, " if cached else ""
    ran = total - unavailable - lost - cached.total()
    sources = f"{ran} ran, {from_cache}{unavailable} unavailable, {lost} not reached"
    if red:
        return Headline("red", f"{red} of {total} cases {'is' if red == 1 else 'are'} red", sources)
    if total == unavailable + lost:
        return Headline("incomplete", f"none of {total} cases ran", sources)
    if lost:
        return Headline("incomplete", f"nothing is red, but {lost} of {total} cases were not reached", sources)
    if missing:
        lost_levels = " and ".join(f"level {level}, which ran in {run}," for level, run in sorted(missing.items()))
        return Headline("incomplete", f"nothing is red, but {lost_levels} did not run", sources)
    ran = total - unavailable
    return Headline("green", f"nothing is red in {ran} case{'s' * (ran != 1)}", sources)


def verdict_counts(records: Iterable[Record]) -> dict[Verdict, int]:
    """Return the number of records of each verdict that occurs, the most urgent first."""
    counts = Counter(record.verdict for record in records)
    return {verdict: counts[verdict] for verdict in WORST_FIRST if counts[verdict]}


def is_red(record: Record) -> bool:
    """Return whether the verdict needs a person's attention."""
    return record.verdict.colour == "red"


def verdict_reason(record: Record) -> str:
    """Return the reason for the verdict in one line, escaped and with secrets masked."""
    if record.verdict in SILENT:
        return one_line(record.outcome.reason) or "no reason recorded"
    text = outcome_text(record.outcome)
    if record.signature:
        text += f"; signature {record.signature}"
    if record.other:
        text += f"; matches failure {record.other}"
    return text


def outcome_text(outcome: Outcome) -> str:
    """Return how a run ended in one line, escaped and with secrets masked."""
    rank = "" if outcome.rank is None else f"rank {outcome.rank} "
    text = {
        OutcomeKind.PASSED: "passed",
        OutcomeKind.RAISED: f"{rank}raised",
        OutcomeKind.SIGNALED: f"{rank}died by {outcome.signal}",
        OutcomeKind.EXITED: f"{rank}exited with {outcome.exit_code}",
        OutcomeKind.HUNG: f"{rank}hung",
        OutcomeKind.OUT_OF_MEMORY: f"{rank}ran out of memory",
    }.get(outcome.kind, outcome.kind.value)
    if outcome.chain:
        return one_line(f"{text}: {exception(outcome.chain[0])}")
    return one_line(f"{outcome.kind.value}: {outcome.reason}") if outcome.reason else text


def exception(raised: Raised) -> str:
    """Return an exception in one line; without a message (a bare assert) the text names the innermost frame."""
    if raised.message.strip():
        return one_line(f"{raised.type}: {raised.message}")
    if not raised.frames:
        return one_line(raised.type)
    frame = raised.frames[-1]
    return one_line(f"{raised.type} at {frame.file.rpartition('/')[2]}:{frame.line} {frame.function}")


def render_chain(chain: Sequence[Raised]) -> str:
    """Return a chain of exceptions with their frames, root cause first, escaped and with secrets masked."""
    blocks = []
    for raised in chain:
        left_out = max(len(raised.frames) - FRAMES, 0)
        lines = [head(f"{raised.type}: {raised.message}" if raised.message else raised.type)]
        lines += [f"    [... {left_out} outer frames omitted]"] * bool(left_out)
        lines += [f"    {frame.file}:{frame.line} {frame.function}" for frame in raised.frames[left_out:]]
        blocks.append("\n".join(lines))
    return visible("\n\nwhich led to\n\n".join(blocks))


def label(cell: Cell, mcore: str | None = None) -> str:
    """Return the cell's id without the axes that are "none"; `mcore` replaces its Megatron version if given."""
    axes = {**cell.named, "mcore": mcore or cell.named["mcore"]}
    return visible("/".join([cell.base, *(f"{axis}-{value}" for axis, value in axes.items() if value != "none")]))


def beside_mcore(cell: Cell) -> dict[str, str]:
    """Return what the cell's id names besides base and megatron-core: name -> version."""
    return {axis: value for axis, value in cell.named.items() if axis != "mcore"}


def group_by(key: Callable[[Record], Key], records: Iterable[Record]) -> dict[Key, list[Record]]:
    """Group records by `key`; groups and their members keep the order of `records`."""
    groups: dict[Key, list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups


def worst(records: Iterable[Record]) -> Verdict:
    """Return the most urgent verdict among the records."""
    return min((record.verdict for record in records), key=WORST_FIRST.index)


def causes(records: Iterable[Record]) -> dict[tuple[str, Verdict, str], list[Record]]:
    """Group red records by cause: failure, verdict and its reason."""
    return group_by(lambda record: (record.failure, record.verdict, verdict_reason(record)), filter(is_red, records))


def silent(records: Iterable[Record]) -> list[tuple[tuple[Verdict, str], list[Record]]]:
    """Group the records without a result by verdict and reason, the largest group first.

    Reasons that differ only in the release that a case needs are one; one without a release joins them.
    """
    alike = group_by(
        lambda record: (record.verdict, NEEDED.sub(r"\1", verdict_reason(record))),
        (record for record in records if record.verdict in SILENT),
    )
    groups = {(verdict, _of_all(members)): members for (verdict, _), members in alike.items()}
    return sorted(groups.items(), key=lambda group: -len(group[1]))


def _of_all(records: Sequence[Record]) -> str:
    """Return the reason of records whose reasons differ only in a release: "needs TE 1.9.0 - 2.19.0 (29 releases)"."""
    reasons = sorted(map(verdict_reason, records), key=lambda reason: not NEEDED.match(reason))
    releases = sorted({match[2] for match in map(NEEDED.match, reasons) if match}, key=version_order)
    if len(releases) < 2:
        return reasons[0]
    count = f" ({len(releases)} releases)" * (len(releases) > 2)
    text = f"{releases[0]} {'-' if count else 'and'} {releases[-1]}{count}"
    return NEEDED.sub(lambda match: f"{match[1]} {text}", reasons[0])


def verdicts_text(pasts: Iterable[PastResult]) -> str:
    """Return the verdicts of nights, equal neighbours as one: "holds x 12, regressed x 2"."""
    runs = groupby(past.verdict for past in pasts)
    return ", ".join(f"{verdict.value} x {sum(1 for _ in alike)}" for verdict, alike in runs)


@lru_cache(maxsize=4096)  # a night has some dozen versions and a hundred thousand records
def version_order(text: str) -> tuple[Any, ...]:
    """Return a sort key: PEP 440 versions as such, everything else (bases, revisions) by text and number."""
    if text == "none":
        return (0,)
    try:
        return (1, Version(text))
    except ValueError:
        # Odd parts are numbers, compared by length and digits: a name may hold more digits than int() accepts.
        parts = enumerate(re.split(r"(\d+)", text))
        return (2, [(len(part.lstrip("0")), part.lstrip("0")) if odd % 2 else part for odd, part in parts])


def row_order(cell: Cell) -> tuple[Any, ...]:
    """Return a sort key for rows: base, TE, driver, what else the cell names, mcore."""
    return tuple(version_order(axis) for axis in (cell.base, *beside_mcore(cell).values(), str(cell.stack[MCORE])))


def in_words(date: str) -> str:
    """Return a date as people write it: "22 September 2025" of "2025-09-22", "September 2025" of "2025-09"."""
    year, *parts = date.split("-")
    numbers = [int(part) for part in parts]
    return " ".join([*map(str, numbers[1:]), *(month_name[month] for month in numbers[:1]), year])


def night_in_words(run: str) -> str:
    """Return the date of a run whose id begins with one, as people write it; any other id as it is."""
    date = re.match(r"(\d{4})-?(\d\d)-?(\d\d)", run)
    return in_words("-".join(date.groups())) if date else run


# What templates call as filters, by their names.
OF_RECORDS: Final = (in_words, label, outcome_text, render_chain, verdict_reason, verdicts_text)
