"""One bisection: an axis, who asks its points, and a notebook of every answer, so that none is asked for twice."""

from __future__ import annotations

import functools
import hashlib
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from matrix.bisection.axes import BisectionAxis, Subject
from matrix.bisection.noise import Noise, Seen, Tally
from matrix.bisection.probing import Ask, line_of, seen_of
from matrix.bisection.search import Plan, SearchResult, WrongEndError, search
from matrix.errors import MatrixError
from matrix.execution.cache_key import code_digest, entry_digest
from matrix.execution.reproduction import brief
from matrix.planning.planned import Planned
from matrix.store import journal
from matrix.store.paths import make_folder, unwritable
from matrix.verdicts.outcome import OutcomeKind
from matrix.verdicts.record import Record
from matrix.verdicts.text import one_line

SILENT: Final = (OutcomeKind.UNAVAILABLE, OutcomeKind.NOT_REACHED)  # asked again: tomorrow it may be there


@dataclass(frozen=True)
class ProbeReport:
    """What is said of a probe while the search runs. `known` says that nothing had to run."""

    label: str
    seen: Seen
    why: str
    seconds: float
    known: bool


class ProbeStore:
    """The answers of a bisection, kept as journals of records: one folder for the first runs, one for the second...

    A bisection that is started again, or in which another search passes the same points, reads them. With `fresh` it
    starts empty, and what was answered before is forgotten.
    """

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        self.folder = folder
        if fresh and folder.is_dir():
            try:
                shutil.rmtree(folder)
            except OSError as error:
                raise unwritable(folder, error) from error
        self._known: dict[int, dict[str, Record]] = {}
        self._open: dict[int, journal.Journal] = {}

    def known(self, number: int) -> dict[str, Record]:
        """Return what the `number`-th runs said, by case key."""
        if number not in self._known:
            there = (self.folder / str(number)).is_dir()
            self._known[number] = dict(journal.read(self.folder / str(number)).results) if there else {}
        return self._known[number]

    def keep(self, number: int, record: Record) -> None:
        """Keep a record; one that says nothing is only remembered."""
        self.known(number)[record.key] = record
        if record.outcome.kind in SILENT:
            return
        if number not in self._open:
            make_folder(self.folder / str(number), exist_ok=True)
            self._open[number] = journal.Journal.new(self.folder / str(number))
        self._open[number].result(record)

    def close(self) -> None:
        """Close the journals."""
        for kept in self._open.values():
            kept.close()
        self._open.clear()


def store_name(subject: Subject) -> str:
    """Return the name of the folder for a subject: answers of other code or another entry are not used again."""
    parts = code_digest(subject.failure.folder, subject.level), entry_digest(subject.failure)
    content = hashlib.sha256(" ".join(parts).encode()).hexdigest()
    return f"{subject.failure.id}-{subject.case.name}-{subject.level.value}-{content[:12]}"


@dataclass
class BisectionSession:
    """Asks through a notebook; what it has asked and what that cost is kept here."""

    ask: Ask
    notebook: ProbeStore
    tell: Callable[[ProbeReport], None]
    records: dict[str, list[Record]] = field(default_factory=dict)  # case key -> its runs
    ran: int = 0
    seconds: float = 0.0

    def seen(self, planned: Sequence[Planned], labels: Sequence[str], numbers: Sequence[int]) -> list[Seen]:
        """Return what the run of each case with that number (1, 2, ...) says; what was asked before is not run again.

        Points that come to the same case share its runs.
        """
        started = time.monotonic()
        for number in sorted(set(numbers)):
            due = {
                item.key: (item, label)
                for item, label, wanted in zip(planned, labels, numbers, strict=True)
                if wanted == number and len(self.records.get(item.key, ())) < number
            }
            missing = [item for item, _ in due.values() if item.key not in self.notebook.known(number)]
            if missing:
                self.ask(missing, functools.partial(self.notebook.keep, number))
            asked = {item.key for item in missing}
            for key, (_, label) in due.items():
                record = self.notebook.known(number)[key]
                fresh = key in asked and not record.cached_from
                self.ran += fresh
                self.records.setdefault(key, []).append(record)
                self.tell(ProbeReport(label, seen_of(record), why(record), record.outcome.seconds, not fresh))
        self.seconds += time.monotonic() - started
        return [seen_of(self.records[item.key][number - 1]) for item, number in zip(planned, numbers, strict=True)]

    def settled(self, planned: Sequence[Planned], labels: Sequence[str], noise: Noise, error: float) -> list[Seen]:
        """Ask each case, outside a search, until it is settled with at most this error."""
        tallies = {item.key: Tally(noise) for item in planned}
        label = {item.key: one for item, one in zip(planned, labels, strict=True)}
        left, number = list({item.key: item for item in planned}.values()), 0
        while left:
            number += 1
            answers = self.seen(left, [label[item.key] for item in left], [number] * len(left))
            for item, seen in zip(left, answers, strict=True):
                tallies[item.key].add(seen, error)
            left = [item for item in left if tallies[item.key].settled is None]
        return [tallies[item.key].settled or Seen.SKIP for item in planned]


@dataclass(frozen=True)
class Bisection:
    """A search that ended: on which axis, what was found, and the records it rests on (place -> its runs)."""

    subject: Subject
    axis: BisectionAxis
    found: SearchResult
    records: Mapping[int, tuple[Record, ...]]
    lines: Mapping[int, str]
    ran: int
    seconds: float
    notes: tuple[str, ...] = ()


def bisect(
    subject: Subject,
    axis: BisectionAxis,
    old: Seen,
    plan: Plan,
    inquiry: BisectionSession,
    *,
    cheap: Callable[[Planned], bool] | None = None,
    suspects: Collection[int] = (),
) -> Bisection:
    """Search an axis. Raises MatrixError when an end does not behave as it was said to."""
    cases: dict[int, Planned] = {}
    turns: Counter[int] = Counter()

    def case(place: int) -> Planned:
        if place not in cases:
            cases[place] = axis.case_at(place)
        return cases[place]

    def probe(places: Sequence[int]) -> Iterable[Seen]:
        turns.update(places)
        return inquiry.seen(
            [case(place) for place in places],
            [axis.points[one].label for one in places],
            [turns[one] for one in places],
        )

    at_hand = frozenset(place for place in range(len(axis.points)) if cheap and cheap(case(place)))
    before, spent = inquiry.ran, inquiry.seconds
    try:
        found = search(axis.order, probe, old, plan, cheap=at_hand, suspects=suspects)
    except WrongEndError as error:
        raise wrong_end(
            axis, error, inquiry.records[case(error.place).key][-1], line_of(subject.failure, case(error.place))
        ) from None
    return Bisection(
        subject,
        axis,
        found,
        {place: tuple(inquiry.records[case(place).key][: turns[place]]) for place in sorted(found.tallies)},
        {place: line_of(subject.failure, case(place)) for place in sorted(found.tallies)},
        inquiry.ran - before,
        inquiry.seconds - spent,
        axis.notes,
    )


def wrong_end(axis: BisectionAxis, error: WrongEndError, record: Record, line: str) -> MatrixError:
    """Say that an end does not behave as it was said to."""
    is_not = "says nothing" if error.seen is Seen.SKIP else f"is not {error.expected.value}"
    return MatrixError(
        f"the {error.expected.value} end {is_not}",
        where=axis.points[error.place].label,
        got=f"{error.seen.value} in {error.runs} run{'s' * (error.runs > 1)}: {why(record)}",
        expected={
            Seen.GOOD: "a pass",
            Seen.BAD: f"the signature of {record.failure}",
        }[error.expected],
        fix=f"nothing was searched; look at it: {line}",
    )


def why(record: Record) -> str:
    """Return in one line what an answer rests on; what came from logs is made harmless."""
    said = brief(record.outcome)
    if record.signature:
        return one_line(f"{record.signature}: {said}")
    if record.other:
        return one_line(f"another failure, {record.other}: {said}")
    kind = record.outcome.kind.value
    return one_line(f"{kind}: {said}" if record.outcome.reason else kind)
