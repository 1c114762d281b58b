"""Run tests in turns under two stacks until each is decided: the catalog's cases, or a command with its own tests.

Results are those of a bisection's session: each run is stored as it ends, and a run that is stored is not repeated.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Final

from matrix.ground.cases.cells import excluded, run_in
from matrix.ground.catalog.failure import Failure, Level
from matrix.ground.catalog.model import HOST, Catalog, Wheels
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.outcome import GPU_MEMORY, MEMORY, SECONDS, Outcome, OutcomeKind
from matrix.ground.verdicts.planned import Planned
from matrix.ground.verdicts.record import Record
from matrix.ground.verdicts.signature_match import owner
from matrix.ground.verdicts.text import one_line
from matrix.kit.command import AGAIN, EXIT, FAILED, NUMBERS, PART, TESTS, raised_in
from matrix.prove.bisection.axes import Subject
from matrix.prove.bisection.ends import in_words, learned
from matrix.prove.bisection.joint import StackPair
from matrix.prove.bisection.odds import MOST, Ending, JudgedRuns, Proof, RunEnd, judge_number, judge_test, rounds_needed
from matrix.prove.bisection.probe_session import NOT_STORED, BisectionSession, line_of, value_of
from matrix.prove.execution.reproduction import brief
from matrix.prove.planning.rerun import RERUN, reproduce_line
from matrix.prove.planning.selection import select
from matrix.prove.store.paths import write_whole

SIDES: Final = ("old", "new")
TITLE: Final = 160  # characters of a reason
KILLED: Final = (124, 137)  # the statuses of timeout(1), and of a shell whose command is killed
_LIMIT: Final = re.compile(r"^(?:Failed: )?Timeout \(?>|timed out after \d|out of memory: kill", re.I)
_OUTSIDE: Final = re.compile(
    r"No space left on device|Disk quota exceeded|name resolution|Name or service not known|Network is unreachable"
    r"|Connection (?:refused|reset|aborted|timed out)|(?:ConnectTimeout|ReadTimeout|MaxRetry|NewConnection|Proxy)Error"
    r"|Max retries exceeded|HTTP Error (?:429|5\d\d)|(?:429|5\d\d) (?:Server|Client) Error|failed after \d+ retries"
)
FIGURES: Final = frozenset({SECONDS, MEMORY, GPU_MEMORY})  # the numbers of a case of the catalog
CPU_ALONE: Final = "numbers of ranks on a CPU, with gloo: a stand-in for those of a GPU"
MACHINE: Final = ("host", "host driver", "GPUs", "ranks per GPU", "MPS")
LESS_IS_WORSE: Final = re.compile(r"/s\b|per.?s|throughput|flops|bandwidth|accuracy|mfu|tokens", re.I)


@dataclass(frozen=True)
class Trial:
    """A case under the old and the new stack; `own`: a command, whose runs may have several tests."""

    name: str
    subjects: tuple[Subject, Subject]
    own: bool = False

    @cached_property
    def planned(self) -> tuple[Planned, Planned]:
        """Return the case under each stack."""
        return self.subjects[0].planned(), self.subjects[1].planned()

    def name_of(self, number: str) -> str:
        """Return the name of one of its numbers among those of all trials."""
        return number if self.own else f"{self.name} {number}"

    @property
    def same(self) -> bool:
        """Return whether both stacks are the same, so that their runs are of one case."""
        return self.planned[0].key == self.planned[1].key

    def line(self, side: int) -> str:
        """Return the command that runs it again under a stack: in a user's environment, by its Python."""
        item = self.planned[side]
        base = self.subjects[side].catalog.find_base(item.cell.base)
        program = base.program if isinstance(base, Wheels) else ""
        if self.own and program:
            return f"PATH={shlex.quote(os.path.dirname(program))}:$PATH {self.name}"  # noqa: PTH120
        if program:
            on_host = replace(item, cell=replace(item.cell, base=HOST))
            return reproduce_line(on_host, {RERUN: f"{shlex.quote(program)} -m pytest tests/failures"})
        return line_of(self.subjects[side], item)


@dataclass(frozen=True)
class JudgedTest:
    """A test or a number, with what its runs show."""

    name: str
    trial: Trial
    finding: JudgedRuns
    number: bool = False


@dataclass(frozen=True)
class TurnLimits:
    """How far a comparison goes: the greatest error, the ratio that matters, the most and least runs, the seconds."""

    error: float = 0.05
    matters: float = 0.02
    most: int = MOST
    seconds: float | None = None
    least: int = 1


def sides_of(stacks: StackPair) -> tuple[Subject, Subject] | None:
    """Return the subject on both stacks, None where one can't be made."""
    pair = stacks.mixture(frozenset()), stacks.mixture(frozenset(stacks.differing))
    return (pair[0], pair[1]) if pair[0] and pair[1] else None


def catalog_trials(
    catalog: Catalog, level: Level, pair_of: Callable[[Subject], StackPair], expression: str = ""
) -> list[Trial]:
    """Return the cases of the catalog that fit both stacks, and which the expression selects under the new one."""
    trials = [*_fitting_trials(catalog, level, pair_of)]
    if not (expression and trials):
        return trials
    keys = {item.key for item in select([trial.planned[1] for trial in trials], expression)}
    return [trial for trial in trials if trial.planned[1].key in keys]


def _fitting_trials(catalog: Catalog, level: Level, pair_of: Callable[[Subject], StackPair]) -> Iterator[Trial]:
    for failure in catalog.failures:
        cases = [case for case in failure.case if level in case.levels and not case.picked and not case.write]
        sides = sides_of(pair_of(Subject(catalog, failure, cases[0], level))) if cases else None
        if sides is None:
            continue
        cells = [side.planned().cell for side in sides]
        if any(excluded(catalog, failure, cell) for cell in cells):
            continue
        fitting = [{case.name for case, _ in run_in(catalog, failure, cell, (level,))} for cell in cells]
        for case in cases:
            if all(case.name in names for names in fitting):
                both = tuple(Subject(catalog, failure, case, level, side.stack, side.sources) for side in sides)
                yield Trial(f"{failure.id} {case.name}", (both[0], both[1]))


@dataclass
class Turns:
    """Trials that run in turns. The runs of a command have the tests of the file `junit`, and the numbers `numbers`."""

    trials: Sequence[Trial]
    session: BisectionSession
    limits: TurnLimits
    junit: str = ""
    numbers: Sequence[str] = ()
    say: Callable[[str], None] = lambda text: None
    notes: Sequence[str] = ()  # of stacks that others replace
    rounds: int = 0
    failures: dict[str, Outcome] = field(default_factory=dict)  # signature -> the first failure that has it
    unreached: Sequence[str] = ()  # what the time was not enough for
    _known: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        """Run each trial until it is decided, or the time is used up. What is decided soonest runs first."""
        started, took = time.monotonic(), 0.0
        due, undecided = [*self.trials], list[JudgedTest]()
        while due and self.rounds < self.limits.most:
            spent = time.monotonic() - started
            if self.rounds and self.limits.seconds is not None:
                due = self._affordable(due, undecided, self.limits.seconds - spent, took)
                self.unreached = [test.name for test in undecided if all(test.trial is not trial for trial in due)]
            if not due:
                return
            self.rounds += 1
            self._take_turns(due, undecided)
            took = time.monotonic() - started - spent
            if self.rounds == 1:
                check_first(self)
            undecided = [test for test in self.judged if test.finding.again or self.rounds < self.limits.least]
            due = [trial for trial in due if any(test.trial is trial for test in undecided)]
            if due:
                names = ", ".join(one_line(test.name, 40) for test in undecided[:3])
                self.say(f"round {self.rounds}: {len(undecided)} to decide: {names}{', ...' * (len(undecided) > 3)}")

    def _affordable(
        self, due: Sequence[Trial], undecided: Sequence[JudgedTest], seconds_left: float, took: float
    ) -> list[Trial]:
        """Return the trials whose next runs end in the seconds that are left, first what is decided soonest.

        `took` are the seconds of the last round, with what starting it costs.
        """
        numbers = [test.number for test in self.judged]
        proof, costs = self._proof(numbers.count(False), numbers.count(True)), list[tuple[float, float, Trial]]()
        for trial in due:
            seconds = sum(self.records(trial, side)[-1].outcome.seconds for side in (0, 1))
            findings = [test.finding for test in undecided if test.trial is trial]
            needed = [
                min(rounds_needed(test.failures, test.runs, proof), proof.most) - max(test.runs) for test in findings
            ]
            costs.append((seconds * min(needed), seconds, trial))
        seconds_left -= max(took - sum(seconds for _, seconds, _ in costs), 0)
        trials = []
        for _, seconds, trial in sorted(costs, key=lambda cost: cost[0]):
            if seconds <= seconds_left:
                trials.append(trial)
                seconds_left -= seconds
        return trials

    def _take_turns(self, due: Sequence[Trial], undecided: Sequence[JudgedTest]) -> None:
        """Run each trial once under both stacks, which begin in turns; of a command the undecided tests alone.

        Which these are depends on earlier runs alone, so that the odds of each test keep their meaning.
        """
        for trial in due if self.junit else ():
            tests = [test for test in undecided if test.trial is trial]
            silent = not all(value_of(self.records(trial, side)[-1], TESTS) for side in (0, 1) if tests)
            whole = silent or any(test.number or test.name == EXIT for test in tests)
            write_whole(
                trial.subjects[0].failure.folder / AGAIN, json.dumps([test.name for test in tests if not whole])
            )
        order = (0, 1) if self.rounds % 2 else (1, 0)
        turns = [(trial, side, len(self.records(trial, side)) + 1) for side in order for trial in due]
        self.session.seen(
            [trial.planned[side] for trial, side, _ in turns],
            [f"{SIDES[side]} {number}: {trial.name}" for trial, side, number in turns],
            [2 * number - 1 + side if trial.same else number for trial, side, number in turns],
        )

    def records(self, trial: Trial, side: int) -> Sequence[Record]:
        """Return the runs of a trial under a stack."""
        records = self.session.records.get(trial.planned[side].key, [])
        return records[side::2] if trial.same else records

    @property
    def judged(self) -> list[JudgedTest]:
        """Return each test and number with what its runs show so far."""
        tests = [(trial, name, sides) for trial in self.trials for name, sides in self._ends(trial).items()]
        series = [(trial, name) for trial in self.trials for name in self.numbers]
        proof = self._proof(len(tests), len(series))
        numbers = [
            JudgedTest(trial.name_of(name), trial, self._number(trial, name, proof), number=True)
            for trial, name in series
        ]
        return [
            *(JudgedTest(name, trial, judge_test(*sides, proof)) for trial, name, sides in tests),
            *(test for test in numbers if test.trial.own or any(test.finding.runs)),  # a case may pass nowhere
        ]

    @property
    def qualifications(self) -> list[str]:
        """Return what qualifies the results; of the numbers of cases what was no GPU, a stand-in, another Python."""
        numbered = [trial for trial in self.trials if self.numbers and not trial.own]
        level = [CPU_ALONE for trial in numbered if trial.planned[0].level is Level.CPU]
        notes = (note for trial in numbered for side in (0, 1) for note in self.records(trial, side)[0].notes)
        return [*self.notes, *dict.fromkeys([*level, *notes])]

    def _proof(self, tests: int, numbers: int) -> Proof:
        return Proof(tests, numbers, self.limits.error, self.limits.matters, self.limits.most)

    def _number(self, trial: Trial, name: str, proof: Proof) -> JudgedRuns:
        pairs = [
            [_number_of(record, name, own=trial.own) for record in records]
            for records in zip(self.records(trial, 0), self.records(trial, 1), strict=False)
            if machine_of(records[0]) == machine_of(records[1])
        ]
        whole = [(old, new) for old, new in pairs if old is not None and new is not None]
        better = bool(LESS_IS_WORSE.search(name))
        return judge_number([old for old, _ in whole], [new for _, new in whole], proof, more_is_better=better)

    def _ends(self, trial: Trial) -> dict[str, tuple[list[RunEnd], list[RunEnd]]]:
        """Return by test how each run of it ended, under the old and under the new stack."""
        ends: dict[str, tuple[list[RunEnd], list[RunEnd]]] = {}
        for side in (0, 1):
            for record in self.records(trial, side):
                for name, end in self._tests(trial, record):
                    ends.setdefault(name, ([], []))[side].append(end)
        return ends

    def _tests(self, trial: Trial, record: Record) -> Iterator[tuple[str, RunEnd]]:
        failures = trial.subjects[0].catalog.failures
        tests, whole = value_of(record, TESTS), EXIT if trial.own and self.junit else trial.name
        if tests is None and record.outcome.kind is OutcomeKind.PASSED:
            yield whole, RunEnd(Ending.PASSED)
        elif tests is None:
            known = record.failure if record.signature and not trial.own else record.other or ""
            yield whole, self._end_of(record.outcome, lambda outcome: known)
        else:
            ends = {name: self._end(test, failures) for name, test in tests.items()}
            yield from {**({} if value_of(record, PART) else {whole: RunEnd(Ending.PASSED)}), **ends}.items()

    def _end(self, test: Sequence[str], failures: Sequence[Failure]) -> RunEnd:
        """Return how a test of a file of JUnit ended."""
        result, kind, message, text = test
        if result not in FAILED:
            return RunEnd(Ending.SKIPPED if result else Ending.PASSED, text=message)
        raised = raised_in(kind, message, text)
        reason = f"{raised.type}: {raised.message}" if raised.message else raised.type
        outcome = Outcome(OutcomeKind.RAISED, reason, chain=(raised,), evidence=text)
        return self._end_of(outcome, partial(self._owner, failures))

    def _end_of(self, outcome: Outcome, known: Callable[[Outcome], str]) -> RunEnd:
        end = end_of(outcome, known)
        self.failures.setdefault(end.signature, outcome)
        return end

    def _owner(self, failures: Sequence[Failure], outcome: Outcome) -> str:
        """Return the entry whose signature a test shows, "" for none; each text is searched once."""
        key = f"{outcome.reason}\n{outcome.evidence}"
        if key not in self._known:
            entry = owner(failures, outcome)
            self._known[key] = str(entry.id) if entry else ""
        return self._known[key]


def check_first(turns: Turns) -> None:
    """Raise MatrixError where the first runs can decide nothing, or none has one of the numbers."""
    own = turns.trials[0].own
    records = [turns.records(trial, side)[0] for trial in turns.trials for side in (0, 1)]
    if own:
        _check_command(turns, records)
    passed = [record for record in records if record.outcome.kind is OutcomeKind.PASSED]
    for name in turns.numbers:
        if passed and all(_number_of(record, name, own=own) is None for record in passed):
            expected = "a number in the output, or a property in JUnit" if own else "a case that has it: at level gpu"
            raise MatrixError("no number", got=f"--metric {name}", expected=expected)


def _check_command(turns: Turns, records: Sequence[Record]) -> None:
    """Raise MatrixError where the first run of a command under each stack can decide nothing."""
    for record, side in zip(records, SIDES, strict=True):
        if record.outcome.kind in NOT_STORED:
            got = brief(record.outcome)
            raise MatrixError(f"the command can't run under the {side} stack", where=record.cell.id, got=got)
    tests = [{*(value_of(record, TESTS) or {})} - {EXIT} for record in records]
    ends = [(value_of(record, TESTS) or {}).get(EXIT, ("", "", "", "")) for record in records]
    lasts = [f"{message}: {text.rstrip().rpartition(chr(10))[2]}" if message else "" for _, _, message, text in ends]
    reasons = [last or brief(record.outcome) for last, record in zip(lasts, records, strict=True)]
    printed = "; ".join(f"{side}: {one_line(text, TITLE)}" for side, text in zip(SIDES, reasons, strict=True))
    if turns.junit and not any(tests):
        fix = f"-- pytest --junitxml {turns.junit}: the path is relative to the folder in which the command runs"
        raise MatrixError("no test ran under either stack", got=printed, expected=f"tests in {turns.junit}", fix=fix)
    if all(tests) and not tests[0] & tests[1]:
        got = "; ".join(f"{side}: {min(names)}" for side, names in zip(SIDES, tests, strict=True))
        raise MatrixError("no test has the same name under both stacks", got=got, fix="run the same tests under both")


def end_of(outcome: Outcome, known: Callable[[Outcome], str]) -> RunEnd:
    """Return how a run ended; `known` returns the entry that has the signature of a failure."""
    if outcome.kind is OutcomeKind.PASSED:
        return RunEnd(Ending.PASSED)
    text = one_line(brief(outcome), TITLE)
    if outcome.kind in NOT_STORED:
        return RunEnd(Ending.SKIPPED, text=text)
    if outcome.kind is OutcomeKind.HUNG:
        return RunEnd(Ending.LIMIT, "time-out", text=f"time-out: {text}")
    killed = outcome.kind is OutcomeKind.OUT_OF_MEMORY or outcome.signal == "SIGKILL" or outcome.exit_code in KILLED
    if killed or _LIMIT.search(text):
        return RunEnd(Ending.LIMIT, "killed" if killed else "time-out", text=text)
    if _OUTSIDE.search("\n".join([text, *(raised.message for raised in outcome.chain), outcome.evidence[-1000:]])):
        return RunEnd(Ending.OUTSIDE, text=text)
    signature = learned(outcome)
    return RunEnd(Ending.FAILED, in_words(signature) if signature else text, known(outcome), text)


def machine_of(record: Record) -> tuple[object, ...]:
    """Return where a run was: the two numbers of a pair must have the same machine, and share a GPU in the same way."""
    places = [note for note in record.notes if note.startswith("ran on ")]
    return *places, *(record.resolved.get(name) for name in MACHINE)


def _number_of(record: Record, name: str, *, own: bool) -> float | None:
    """Return a number of a run: of a command what it printed, of a case that passed the largest of its ranks."""
    if own:
        number = None if value_of(record, PART) else (value_of(record, NUMBERS) or {}).get(name)
        return None if number is None else float(number)
    ranks = record.outcome.ranks if record.outcome.kind is OutcomeKind.PASSED else ()
    return max((end.used[name] for end in ranks if name in end.used), default=None)
