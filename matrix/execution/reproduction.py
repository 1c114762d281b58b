"""One case in its cell: started, run, judged, recorded. What a reproduction under tests/failures is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

from matrix.catalog.failure import Expectation, Failure, Level
from matrix.catalog.limits import NO_LIMITS, Limits
from matrix.catalog.versions import NONE
from matrix.errors import MatrixError
from matrix.execution.ranks.job import Job
from matrix.planning.planned import Planned
from matrix.verdicts.judge import Judgement, judge
from matrix.verdicts.outcome import Outcome, OutcomeKind
from matrix.verdicts.record import Record, Verdict

# Seconds for one case. A save-and-load case takes 1 s to 10 s on 2 cores, 15 s when they are busy; upstream's whole
# training loop 14 s. Override: MEGATRIX_DEADLINE.
DEADLINE_S: Final = 120.0


class Runs(Protocol):
    """Runs a job on ranks (matrix.execution.ranks.supervisor.Supervisor)."""

    def run(self, job: Job) -> Outcome:
        """Run the job to its end."""


class Keeps(Protocol):
    """Keeps what happened (matrix.store.journal.Journal)."""

    def started(self, key: str) -> str:
        """Keep that the case is about to run; return the time."""

    def result(self, record: Record) -> str:
        """Keep the record; return the time."""


@dataclass(frozen=True)
class Surroundings:
    """Where a case runs: the overlays of its cell, its logs, what was found there.

    `unavailable` is the reason why the case can't run here, "" if it can.
    """

    path: tuple[str, ...] = ()
    log_dir: Path = Path()
    deadline_s: float = DEADLINE_S
    resolved: Mapping[str, str] | None = None
    content: str = ""
    notes: tuple[str, ...] = ()
    reproduce: str = ""
    run: str = ""
    unavailable: str = ""


class Reproduction:
    """One planned case, ready to run. A test calls `run` once, with what its ranks are to do."""

    def __init__(
        self,
        planned: Planned,
        failure: Failure,
        catalog: tuple[Failure, ...],
        where: Surroundings,
        supervisor: Callable[[], Runs],
        journal: Keeps,
    ) -> None:
        self.planned, self.failure, self._catalog = planned, failure, catalog
        self._where, self._supervisor, self._journal = where, supervisor, journal
        self.record: Record | None = None  # once it has run

    @property
    def case(self) -> str:
        """Return the name of the case, for the test to choose its arguments by."""
        return self.planned.case

    @property
    def stand_ins(self) -> dict[str, Any]:
        """Return the arguments of matrix.kit.absent_packages.install for this cell; empty when it needs none."""
        stand_in = self.failure.stand_in_for(self.planned.cell) if self.planned.level is Level.CPU else None
        if stand_in is None:
            return {}
        return {
            "packages": list(stand_in.packages),
            "missing": list(stand_in.missing),
            "provided": dict(stand_in.provided),
        }

    def run(self, target: str, *, limits: Limits = NO_LIMITS, **kwargs: Any) -> Record:
        """Run `target` on the case's ranks, judge the outcome, keep the record and return it.

        `limits` bound what the ranks may take; where one can't be set the case is `unavailable` and does not run.
        A red outcome of a pooled run is run once more in fresh interpreters. That is evidence, not a second chance:
        the verdict stays red, and a difference between the two is written into the record.
        """
        started = self._journal.started(self.planned.key)
        if self._where.unavailable:
            return self._keep(Outcome(OutcomeKind.UNAVAILABLE, self._where.unavailable), started)
        job = Job(
            target=target,
            kwargs=kwargs,
            world_size=self.planned.ranks,
            path=self._where.path,
            env={},
            deadline_s=self._where.deadline_s,
            log_dir=self._where.log_dir,
            limits=limits,
            launcher=self.planned.launcher,
            device="cuda" if self.planned.level is Level.GPU else "cpu",
            hidden=hidden(self.planned),
        )
        outcome = self._supervisor().run(job)
        if self._judged(outcome).verdict.colour == "red":
            fresh = self._supervisor().run(replace(job, fresh=True, log_dir=job.log_dir / "fresh"))
            same = self._judged(fresh) == self._judged(outcome)
            said = f"run again in fresh interpreters: {'the same' if same else 'DIFFERENT'}: {brief(fresh)}"
            outcome = replace(outcome, attempts=(*outcome.attempts, said))
        return self._keep(outcome, started)

    def read(self, check: Callable[[], Outcome]) -> Record:
        """Judge what `check` finds by reading both sides (level contract), keep the record and return it.

        What can't be read, a release that is not recorded among it, makes the case `unavailable`.
        """
        started = self._journal.started(self.planned.key)
        if self._where.unavailable:
            return self._keep(Outcome(OutcomeKind.UNAVAILABLE, self._where.unavailable), started)
        try:
            outcome = check()
        except MatrixError as error:
            outcome = Outcome(OutcomeKind.UNAVAILABLE, error.brief)
        return self._keep(outcome, started)

    def _judged(self, outcome: Outcome) -> Judgement:
        return judge(self.failure, self.planned.expectation, outcome, self._catalog)

    def _keep(self, outcome: Outcome, started: str) -> Record:
        self.record = make_record(self.planned, outcome, self._judged(outcome), self._where, started)
        self._journal.result(self.record)
        return self.record


def hidden(planned: Planned) -> tuple[str, ...]:
    """Return the modules that a case's ranks must not see.

    megatron-core uses the Transformer Engine that is installed wherever it can, and without a GPU that ends in its
    kernels: in a cell of which it is no part it is hidden below level gpu.
    """
    return ("transformer_engine",) if planned.cell.te == NONE and planned.level is Level.CPU else ()


def make_record(planned: Planned, outcome: Outcome, judgement: Judgement, where: Surroundings, started: str) -> Record:
    """Return the record of a case that was judged."""
    return Record(
        failure=planned.failure,
        case=planned.case,
        cell=planned.cell,
        level=planned.level,
        expectation=planned.expectation,
        verdict=judgement.verdict,
        outcome=outcome,
        signature=judgement.signature,
        other=judgement.other,
        reproduce=where.reproduce,
        notes=(*planned.notes, *where.notes, *outcome.attempts),
        why=planned.why,
        resolved=where.resolved or {},
        content=where.content,
        run=where.run,
        started=started,
    )


def brief(outcome: Outcome) -> str:
    """Return an outcome in one line."""
    return outcome.reason.strip().splitlines()[0] if outcome.reason.strip() else outcome.kind.value


def explain_red(record: Record) -> str:
    """Return why a red record is red, for the person who reads the test's failure."""
    expected = {
        Expectation.BROKEN: "the catalog expects this failure here",
        Expectation.WORKS: "the catalog expects this to work here",
        Expectation.UNKNOWN: "the catalog says nothing of this cell",
    }[record.expectation]
    got = {
        Verdict.VANISHED: "it passed: the reproduction rotted, or it was fixed",
        Verdict.REGRESSED: f"it failed with this very failure (signature {record.signature})",
        Verdict.UNEXPLAINED: f"it failed otherwise ({record.other or 'not a failure of the catalog'})",
    }[record.verdict]
    lines = [f"{record.verdict.value}: {expected}, and {got}", f"  outcome:   {brief(record.outcome)}"]
    lines += [f"  note:      {note}" for note in record.notes]
    lines += [f"  log:       {end.log}" for end in record.outcome.ranks if end.log]
    lines.append(f"  reproduce: {record.reproduce}")
    return "\n".join(lines)
