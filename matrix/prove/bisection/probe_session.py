"""One bisection: an axis, the probe of its points, and a store of every result, so that no point runs twice."""

from __future__ import annotations

import functools
import hashlib
import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from matrix.ground.catalog.folders import with_site
from matrix.ground.errors import MatrixError, counted
from matrix.ground.verdicts.outcome import OutcomeKind
from matrix.ground.verdicts.planned import Planned
from matrix.ground.verdicts.record import Record
from matrix.ground.verdicts.text import one_line
from matrix.kit.command import METRIC, RUNS
from matrix.prove.bisection.axes import BisectionAxis, Subject
from matrix.prove.bisection.noise import CERTAIN, ProbeResult, RunTest, Sample, Tally
from matrix.prove.bisection.probing import Ask, contract_line, reads_only
from matrix.prove.bisection.search import Plan, ResultKind, SearchResult, WrongEndError, search
from matrix.prove.execution.cache_key import code_digest, entry_digest, modules_of
from matrix.prove.execution.reproduction import brief
from matrix.prove.planning.rerun import reproduce_line
from matrix.prove.store import journal
from matrix.prove.store.paths import make_folder, unwritable
from matrix.prove.store.stored_run import RunLock
from matrix.read.history.index import SourceFile, history_of

NOT_STORED: Final = (OutcomeKind.UNAVAILABLE, OutcomeKind.NOT_REACHED)  # probed again by the next bisection


def seen_of(record: Record) -> ProbeResult:
    """Return the result of a record: this failure's signature is bad, a pass is good, everything else is a skip."""
    if record.signature is not None:
        return ProbeResult.BAD
    return ProbeResult.GOOD if record.outcome.kind is OutcomeKind.PASSED else ProbeResult.SKIP


def numbers_of(record: Record, repeats: int = 1) -> tuple[float, ...]:
    """Return the numbers that the command of a record printed, () if it has none: the mean of each `repeats` runs."""
    numbers = [float(number) for number in value_of(record, METRIC) or ()]
    return tuple(fmean(numbers[start : start + repeats]) for start in range(0, len(numbers), repeats))


def metric_of(record: Record, repeats: int = 1) -> Sample:
    """Return the numbers of a record; a run without one is a skip, and so is one with nan or inf."""
    numbers = numbers_of(record, repeats)
    return numbers if numbers and all(map(math.isfinite, numbers)) else ProbeResult.SKIP


def diverged_of(record: Record) -> Sample:
    """Return whether the number of a record is nan or inf: bad. A run without a number is a skip."""
    numbers = numbers_of(record)
    diverged = not all(map(math.isfinite, numbers))
    return (ProbeResult.BAD if diverged else ProbeResult.GOOD) if numbers else ProbeResult.SKIP


def runs_of_record(record: Record) -> Sample:
    """Return the result of a record as `seen_of` does, of several runs that passed as many times."""
    result = seen_of(record)
    return (result,) * int(value_of(record, RUNS) or 1) if result is ProbeResult.GOOD else result


def value_of(record: Record, name: str) -> Any:
    """Return a part of what the command's rank returned, None without it."""
    value = record.outcome.ranks[0].value if record.outcome.ranks else None
    return value.get(name) if isinstance(value, dict) else None


# `git bisect run` reads an exit status of 0 as good, 1 - 124, 126 and 127 as bad, 125 as a skip.
EXIT_STATUS: Final = {ProbeResult.GOOD: 0, ProbeResult.BAD: 1, ProbeResult.SKIP: 125}


def exit_code(records: Sequence[Record]) -> int:
    """Return the exit status for `git bisect run`: bad if one shows the failure, good if all pass, else skip."""
    results = {seen_of(record) for record in records}
    if ProbeResult.BAD in results:
        return EXIT_STATUS[ProbeResult.BAD]
    return EXIT_STATUS[ProbeResult.GOOD if results == {ProbeResult.GOOD} else ProbeResult.SKIP]


def line_of(subject: Subject, item: Planned) -> str:
    """Return the command that probes a point again."""
    if reads_only(subject.failure, item.level):
        return contract_line(item)
    return reproduce_line(item, with_site(os.environ, *subject.catalog.site))


@dataclass(frozen=True)
class ProbeReport:
    """One probe, as reported while the search runs. `known`: the result was stored, nothing ran."""

    label: str
    seen: Sample
    why: str
    seconds: float
    known: bool

    @property
    def line(self) -> str:
        """Return the report as one line."""
        source = "known" if self.known else f"{self.seconds:.1f} s"
        runs = self.seen if isinstance(self.seen, tuple) else (self.seen,)
        result = runs[0].value if isinstance(runs[0], ProbeResult) else "ran"
        source += f", {len(runs)} runs" * (len(runs) > 1)
        return f"{result:4}  {self.label}  [{source}]  {self.why}"


class ProbeStore:
    """The records of a bisection, stored as journals: one folder for the first run of each case, one for the second...

    A bisection that starts again, and a search that passes the same points, reads them. `fresh` deletes the stored
    records first. Raises MatrixError if another process uses the store.
    """

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        self.folder = folder
        make_folder(folder, exist_ok=True)
        self._lock = RunLock(folder, "bisection")
        if fresh:
            try:
                for runs in filter(Path.is_dir, folder.iterdir()):
                    shutil.rmtree(runs)
            except OSError as error:
                raise unwritable(folder, error) from error
        self._known: dict[int, dict[str, Record]] = {}
        self._open: dict[int, journal.Journal] = {}

    def known(self, number: int) -> dict[str, Record]:
        """Return the records of the `number`-th runs, by case key."""
        if number not in self._known:
            stored = (self.folder / str(number)).is_dir()
            self._known[number] = dict(journal.read(self.folder / str(number)).results) if stored else {}
        return self._known[number]

    def keep(self, number: int, record: Record) -> None:
        """Store a record; unavailable and not-reached are kept in memory only."""
        self.known(number)[record.key] = record
        if record.outcome.kind in NOT_STORED:
            return
        if number not in self._open:
            make_folder(self.folder / str(number), exist_ok=True)
            self._open[number] = journal.Journal.new(self.folder / str(number))
        self._open[number].result(record)

    def close(self) -> None:
        """Close the journals, and release the store."""
        for open_journal in self._open.values():
            open_journal.close()
        self._open.clear()
        self._lock.release()


def store_name(subject: Subject) -> str:
    """Return the folder name for a subject; it contains a digest of the code and the entry, so a change starts anew."""
    parts = (
        code_digest(subject.failure.folder, subject.level, modules_of(subject.failure)),
        entry_digest(subject.failure),
        str(subject.compiled),
    )
    content = hashlib.sha256(" ".join(parts).encode()).hexdigest()
    return f"{subject.failure.id}-{subject.case.name}-{subject.level.value}-{content[:12]}"


@dataclass
class BisectionSession:
    """Probes cases through a probe store, and counts the probes that ran and their seconds."""

    probe: Ask
    store: ProbeStore
    show: Callable[[ProbeReport], None]
    read: Callable[[Record], Sample] = seen_of
    repeats: int = 1  # runs of a command of which the mean is one number
    say: Callable[[str], None] = lambda text: None
    made: Callable[[str], bool] = lambda base: True  # whether a base is there
    records: dict[str, list[Record]] = field(default_factory=dict)  # case key -> its runs
    ran: int = 0
    seconds: float = 0.0

    def is_cheap(self, item: Planned) -> bool:
        """Return whether a case can be probed without making an environment first."""
        return item.key in self.store.known(1) or self.made(item.cell.base)

    def judge_anew(self, probe: Ask, store: ProbeStore, read: Callable[[Record], Sample]) -> None:
        """Go on with a probe and a store whose records are judged by another signature."""
        self.probe, self.store, self.read = probe, store, read
        self.records.clear()

    def seen(self, planned: Sequence[Planned], labels: Sequence[str], numbers: Sequence[int]) -> list[Sample]:
        """Return the result of the run of each case with that number (1, 2, ...); a stored run is not repeated.

        Points with the same case share its runs.
        """
        started = time.monotonic()
        for number in sorted(set(numbers)):
            due = {
                item.key: (item, label)
                for item, label, run in zip(planned, labels, numbers, strict=True)
                if run == number and len(self.records.get(item.key, ())) < number
            }
            missing = [item for item, _ in due.values() if item.key not in self.store.known(number)]
            if missing:
                self.probe(missing, functools.partial(self.store.keep, number), number)
            probed = {item.key for item in missing}
            for key, (_, label) in due.items():
                record = self.store.known(number)[key]
                fresh = key in probed and not record.cached_from
                self.ran += fresh
                self.records.setdefault(key, []).append(record)
                self.show(ProbeReport(label, self.read(record), why(record), record.outcome.seconds, not fresh))
        self.seconds += time.monotonic() - started
        return [self.read(self.records[item.key][number - 1]) for item, number in zip(planned, numbers, strict=True)]

    def settled(
        self, planned: Sequence[Planned], labels: Sequence[str], noise: RunTest, error: float
    ) -> list[ProbeResult]:
        """Probe each case, outside a search, until it is settled with at most this error."""
        tallies = {item.key: Tally(noise) for item in planned}
        label = {item.key: name for item, name in zip(planned, labels, strict=True)}
        pending, number = list({item.key: item for item in planned}.values()), 0
        while pending:
            number += 1
            results = self.seen(pending, [label[item.key] for item in pending], [number] * len(pending))
            for item, sample in zip(pending, results, strict=True):
                tallies[item.key].add(sample, error)
            pending = [item for item in pending if tallies[item.key].settled is None]
        return [tallies[item.key].settled or ProbeResult.SKIP for item in planned]


@dataclass(frozen=True)
class End:
    """An end of a search: its case and its name."""

    planned: Planned
    label: str


@dataclass(frozen=True)
class Bisection:
    """A completed search: its axis, its result, and by place the records of its runs and the command to repeat it."""

    subject: Subject
    axis: BisectionAxis
    result: SearchResult
    records: Mapping[int, tuple[Record, ...]]
    lines: Mapping[int, str]
    ran: int
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def before(self) -> int | None:
        """Return the probed ancestor nearest to the change that still has the result of the old end."""
        below, tallies = self.axis.order.below, self.result.tallies
        new = tallies[len(self.axis.points) - 1].settled
        inside = below[self.result.candidates[-1]]
        old = [
            index
            for index, tally in tallies.items()
            if tally.settled not in (new, ProbeResult.SKIP) and inside >> index & 1
        ]
        return max(old, key=lambda index: below[index].bit_count(), default=None)

    @property
    def sides(self) -> list[int]:
        """Return the places on both sides of the change, [] where the result is ambiguous."""
        prior = self.before
        return [] if self.result.kind is ResultKind.AMBIGUOUS or prior is None else [prior, self.result.candidates[0]]

    def doubted(self, *notes: str) -> Bisection:
        """Return the result as ambiguous, for the reasons in `notes`."""
        doubtful = replace(self.result, kind=ResultKind.AMBIGUOUS, confidence=0.0)
        return replace(self, result=doubtful, notes=(*self.notes, *notes))


def bisect(
    subject: Subject,
    axis: BisectionAxis,
    old: ProbeResult,
    plan: Plan,
    session: BisectionSession,
    *,
    cheap: Callable[[Planned], bool] | None = None,
    suspects: Collection[int] = (),
) -> Bisection:
    """Search an axis. Raises MatrixError when an end does not have the expected result."""
    case, turns = functools.cache(axis.case_at), Counter[int]()

    def probe(places: Sequence[int]) -> Iterable[Sample]:
        turns.update(places)
        labels = [axis.points[index].label for index in places]
        return session.seen([case(index) for index in places], labels, [turns[index] for index in places])

    @functools.cache
    def changing() -> tuple[str, set[int], set[int]]:
        bad_end = case(len(axis.points) - 1 if old is ProbeResult.GOOD else 0)
        return changing_frame(axis, session.records[bad_end.key][-1])

    def likelier() -> Sequence[Collection[int]]:
        _, in_function, in_file = changing()
        return in_file, in_function, suspects, in_function & set(suspects)

    cheap_places = frozenset(index for index in range(len(axis.points)) if cheap and cheap(case(index)))
    ran_before, spent = session.ran, session.seconds
    try:
        result = search(axis.order, probe, old, plan, cheap=cheap_places, likelier=likelier)
    except WrongEndError as error:
        wrong = case(error.place)
        raise wrong_end(axis, error, session.records[wrong.key][-1], line_of(subject, wrong)) from None
    return Bisection(
        subject,
        axis,
        result,
        {index: tuple(session.records[case(index).key][: turns[index]]) for index in sorted(result.tallies)},
        {index: line_of(subject, case(index)) for index in sorted(result.tallies)},
        session.ran - ran_before,
        session.seconds - spent,
        (*axis.notes, *_saving(axis, result, changing(), plan, cheap=cheap_places, suspects=suspects)),
    )


def changing_frame(axis: BisectionAxis, record: Record) -> tuple[str, set[int], set[int]]:
    """Return the innermost function of a traceback that points of the axis change, those, and those of its file.

    By upstream's history; where no point changes a function, of a file alone.
    """
    nothing = "", set[int](), set[int]()
    history = history_of(axis.component)
    if history is None:
        return nothing
    numbers = [(index, history.number_of_release(point.id)) for index, point in enumerate(axis.points)]
    steps = list(pairwise([(index, number) for index, number in numbers if number is not None]))
    number_of = [history.number_of(commit.id) for commit in axis.commits]

    def places(file: SourceFile, names: Collection[str]) -> set[int]:
        changed = file.changed_in(names)
        commits = {change.commit for name in names for change in file.changes(name)}
        releases = {
            index
            for (_, older), (index, newer) in steps
            if any(changed >> number & 1 for number in range(older + 1, newer + 1))
        }
        return releases | {index for index, number in enumerate(number_of) if index and number in commits}

    for frame in (frame for raised in record.outcome.chain for frame in reversed(raised.frames)):
        if path := history.path_of(frame.file):
            file = history.file(path)
            names = file.functions_at(frame.function, frame.line, range(len(history.releases)))
            in_function, in_file = places(file, names), places(file, file.names)
            if in_function:
                return f"{path}:{names[0]}", in_function, in_file
            nothing = nothing if nothing[0] or not in_file else (path, in_function, in_file)
    return nothing


def _saving(
    axis: BisectionAxis, result: SearchResult, changing: tuple[str, set[int], set[int]], plan: Plan, **hints: Any
) -> tuple[str, ...]:
    """Return what the order by history saved: the search without it is computed from the result, nothing runs."""
    source, in_function, in_file = changing
    if not source or result.kind is ResultKind.AMBIGUOUS:
        return ()
    ends = [result.tallies[index].settled or ProbeResult.SKIP for index in (0, len(axis.points) - 1)]

    def imagined(places: Sequence[int]) -> list[Sample]:
        by_answer = {index: ends[axis.order.below[index] >> result.candidates[0] & 1] for index in places}
        return [result.tallies[at].settled or seen if at in result.tallies else seen for at, seen in by_answer.items()]

    plain = search(axis.order, imagined, ends[0], replace(plan, noise=CERTAIN), **hints)
    changed = len(in_function or in_file)
    points = f"{changed} of {len(axis.points)} points change {source}, which is on the traceback: tried first"
    return (f"{points}; {len(result.tallies)} points were probed, {len(plain.tallies)} without that order",)


def wrong_end(axis: BisectionAxis, error: WrongEndError, record: Record, line: str) -> MatrixError:
    """Return the error for an end that does not have the expected result."""
    is_not = "is inconclusive" if error.seen is ProbeResult.SKIP else f"is not {error.expected.value}"
    return MatrixError(
        f"the {error.expected.value} end {is_not}",
        where=axis.points[error.place].label,
        got=f"{error.seen.value} in {counted(error.runs, 'run')}: {why(record)}",
        expected={ProbeResult.GOOD: "a pass", ProbeResult.BAD: f"the signature of {record.failure}"}[error.expected],
        fix=f"nothing was searched; reproduce it: {line}",
    )


def why(record: Record) -> str:
    """Return the reason of a result in one line, with secrets masked and control characters visible."""
    reason = brief(record.outcome)
    if numbers := numbers_of(record):
        return f"the metric is {fmean(numbers):.6g}" + f", the mean of {len(numbers)} runs" * (len(numbers) > 1)
    if record.signature:
        return one_line(f"{record.signature}: {reason}")
    if record.other:
        return one_line(f"another failure, {record.other}: {reason}")
    kind = record.outcome.kind.value
    return one_line(f"{kind}: {reason}" if record.outcome.reason else kind)
