"""Run or read one case in its cell, judge its outcome and record it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from matrix.ground.cases.cells import stand_in_of
from matrix.ground.cases.machine_requirements import WITHOUT_GPU, Placement
from matrix.ground.catalog.failure import PARITY, Case, CaseNeed, Expectation, Failure, Level
from matrix.ground.catalog.folders import with_site
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.stack import ABSENT, TE
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.judge import Judgement, judge
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.ground.verdicts.planned import Planned
from matrix.ground.verdicts.record import Record, Verdict
from matrix.ground.verdicts.text import visible
from matrix.prove.execution.ranks import supervisor
from matrix.prove.execution.ranks.rank_spec import RankJob
from matrix.prove.execution.ranks.shared_gpu import variables_of
from matrix.prove.planning.rerun import reproduce_line
from matrix.prove.provision.project import locked

# Seconds for one case. A save-and-load case takes 1 s to 10 s on 2 cores, 15 s on busy ones; upstream's complete
# training loop takes 14 s. Override: MEGATRIX_DEADLINE.
DEADLINE_S: Final = 120.0


def deadline(text: str) -> float:
    """Return the seconds of MEGATRIX_DEADLINE, DEADLINE_S without it."""
    with suppress(ValueError):
        if (seconds := float(text or DEADLINE_S)) > 0:
            return seconds
    raise MatrixError("not a time", where="MEGATRIX_DEADLINE", got=text, expected="seconds, such as 120")


class RecordSink(Protocol):
    """Stores the start and the record of cases (matrix.prove.store.journal.Journal)."""

    def started(self, key: str) -> str:
        """Store that the case starts; return the time."""

    def result(self, record: Record) -> str:
        """Store the record; return the time."""


@dataclass(frozen=True)
class CaseContext:
    """The context of a case: the overlays of its cell, its log folder, the resolved versions.

    `unavailable` is the reason why the case can't run on this machine, "" if it can. `writer_path` are the overlays of
    its writer, `checkpoint` is the folder for what that writes. `clones` are the site's, by name. `libraries` are
    loaded in its ranks before torch, where they share a GPU (`placement`).
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
    writer_path: tuple[str, ...] = ()
    checkpoint: Path = Path()
    clones: Mapping[str, str] = field(default_factory=dict)
    placement: Placement = WITHOUT_GPU
    libraries: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reproduction:
    """One planned case of a failure in its context: by `read` at level contract, by `run_job` at the others.

    `entries` are all failures of the catalog, which other signatures belong to.
    """

    planned: Planned
    failure: Failure
    entries: tuple[Failure, ...]
    context: CaseContext
    run_job: Callable[[RankJob], Outcome]
    journal: RecordSink
    read: Callable[[], Outcome]

    def run(self) -> Record:
        """Run or read the case, judge the outcome, store the record and return it."""
        started = self.journal.started(self.planned.key)
        if self.context.unavailable:
            outcome = Outcome(OutcomeKind.UNAVAILABLE, self.context.unavailable)
        elif self.planned.level is Level.CONTRACT:
            try:
                outcome = self.read()
            except MatrixError as error:  # one of both APIs can't be read, e.g. of a release that is not recorded
                outcome = Outcome(OutcomeKind.UNAVAILABLE, error.brief)
        else:
            outcome = self._outcome_run()
        record = make_record(self.planned, outcome, self._judged(outcome), self.context, started)
        self.journal.result(record)
        return record

    def debug(self) -> None:
        """Run rank 0 of the case, which ran and is red, in this process; raise what it raises. Nothing is recorded."""
        if writer := self.planned.writer:
            provide_checkpoint(self.context.checkpoint, partial(self._write, writer))
        supervisor.debug(replace(self.job, env=variables_of(self.context.placement)))

    @property
    def job(self) -> RankJob:
        """Return the rank job of the case."""
        case = self.failure.case_named(self.planned.case)
        return self._job(self.planned, case.function, self.context.path)

    def _job(self, planned: Planned, function: tuple[str, str], path: tuple[str, ...]) -> RankJob:
        """Return the job of a function (module, name) in a cell with the overlays `path`."""
        case, placement = self.failure.case_named(planned.case), self.context.placement
        return RankJob(
            target=f"{function[0] if case.run == PARITY else f'{self.failure.folder / function[0]}.py'}:{function[1]}",
            kwargs=case.arguments,
            world_size=planned.ranks,
            path=path,
            env={},
            deadline_s=max(self.context.deadline_s, case.deadline),
            log_dir=self.context.log_dir,
            limits=case.limits,
            launcher=planned.launcher,
            device="cuda" if planned.level is Level.GPU else "cpu",
            hidden=hidden(case, planned),
            stand_ins=stand_ins(self.failure, case, planned),
            clones=self.context.clones,
            backend=placement.backend,
            checkpoint=self.context.checkpoint,
            gpus=placement.gpus,
            nccl=placement.nccl.version if placement.nccl else "",
            libraries=self.context.libraries,
            fresh=bool(self.context.libraries),
        )

    def _write(self, writer: Planned, folder: Path) -> Outcome:
        """Write the checkpoint that the case reads into `folder`, in the cell of its writer."""
        job = self._job(writer, self.failure.case_named(self.planned.case).writer, self.context.writer_path)
        return self.run_job(replace(job, checkpoint=folder, log_dir=job.log_dir / "writer"))

    def _outcome_run(self) -> Outcome:
        """Run the job; run it once more in new interpreters if the outcome is red and the first were not new.

        The second run is evidence only: the verdict stays red, and the record notes a difference. A run that ended in
        the race of another entry shows nothing about this case: there the second run counts, and the record says so.
        """
        if writer := self.planned.writer:
            missing = provide_checkpoint(self.context.checkpoint, partial(self._write, writer))
            if missing:
                return missing
        job = self.job
        outcome = self.run_job(job)
        races = {entry.id for entry in self.entries if entry.race}
        if (race := self._judged(outcome).other) in races:
            note = f"ran again: the first run ended in the race {race}: {brief(outcome)}"
            outcome = self.run_job(replace(job, fresh=True, log_dir=job.log_dir / "after-race"))
            return replace(outcome, attempts=(*outcome.attempts, note))
        if self._judged(outcome).verdict.colour == "red" and self.failure.case_named(self.planned.case).preload:
            fresh = self.run_job(replace(job, fresh=True, log_dir=job.log_dir / "fresh"))
            difference = "the same" if self._judged(fresh) == self._judged(outcome) else "DIFFERENT"
            note = f"run again in fresh interpreters: {difference}: {brief(fresh)}"
            outcome = replace(outcome, attempts=(*outcome.attempts, note))
        return outcome

    def _judged(self, outcome: Outcome) -> Judgement:
        return judge(self.failure, self.planned.expectation, outcome, self.entries)


def provide_checkpoint(folder: Path, write: Callable[[Path], Outcome]) -> Outcome | None:
    """Make sure that `folder` holds a checkpoint; return why there is none, or None where there is.

    `write` writes it into the folder that it receives. Concurrent processes write it once; after a kill it is written
    again. The returned outcome shows no signature: what the writer raises is not what the reader raises.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_suffix(".lock")):
        if folder.is_dir():
            return None
        making = folder.with_suffix(".making")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir()
        outcome = write(making)
        if outcome.kind is OutcomeKind.PASSED:
            making.rename(folder)
            return None
        if outcome.kind is OutcomeKind.UNAVAILABLE:
            return outcome
        reason = f"the checkpoint was not written: {outcome.kind.value}: {outcome.reason}"
        return Outcome(OutcomeKind.EXITED, reason, seconds=outcome.seconds, ranks=outcome.ranks)


def stand_ins(failure: Failure, case: Case, planned: Planned) -> dict[str, Any]:
    """Return the arguments of matrix.kit.absent_packages.install for a case; {} if its cell needs none."""
    stand_in = stand_in_of(failure, case, planned.level, planned.cell)
    if stand_in is None:
        return {}
    return {"packages": list(stand_in.packages), "missing": list(stand_in.missing), "provided": dict(stand_in.provided)}


def hidden(case: Case, planned: Planned) -> tuple[str, ...]:
    """Return the modules that are hidden from a case's ranks.

    megatron-core uses an installed Transformer Engine wherever it can: without a GPU it fails in its kernels, and with
    one the cell would not be what its id states. It is hidden in cells without it, unless the case needs one.
    """
    absent = (
        planned.cell.stack[TE] is ABSENT
        and planned.level is not Level.CONTRACT
        and CaseNeed.COMPILED_TE not in case.needs
    )
    return ("transformer_engine",) if absent else ()


def make_record(planned: Planned, outcome: Outcome, judgement: Judgement, context: CaseContext, started: str) -> Record:
    """Return the record of a judged case."""
    return Record(
        planned=planned,
        verdict=judgement.verdict,
        outcome=outcome,
        signature=judgement.signature,
        other=judgement.other,
        reproduce=context.reproduce,
        notes=(*planned.notes, *context.notes, *outcome.attempts),
        resolved={**(context.resolved or {}), **outcome.resolved},
        content=context.content,
        run=context.run,
        started=started,
    )


def not_run(planned: Planned, catalog: Catalog, outcome: Outcome, run: str) -> Record:
    """Return the record of a case that did not run: unavailable or not reached."""
    line = reproduce_line(planned, with_site(os.environ, *catalog.site))
    context = CaseContext(reproduce=line, run=run)
    judgement = judge(catalog.failure(planned.failure), planned.expectation, outcome)
    return make_record(planned, outcome, judgement, context, "")


def brief(outcome: Outcome) -> str:
    """Return the reason of an outcome, or its kind, in one line."""
    return outcome.reason.strip().splitlines()[0] if outcome.reason.strip() else outcome.kind.value


def explain_red(record: Record) -> str:
    """Return why a red record is red, as the text of the failed test, without control characters."""
    expected = {
        Expectation.BROKEN: "the catalog expects this failure in this cell",
        Expectation.WORKS: "the catalog expects no failure in this cell",
        Expectation.UNKNOWN: "the catalog has no claim for this cell",
    }[record.expectation]
    got = {
        Verdict.VANISHED: "it passed: the failure is fixed, or the reproduction is broken",
        Verdict.REGRESSED: f"it failed with exactly this failure (signature {record.signature})",
        Verdict.UNEXPLAINED: f"it failed differently ({record.other or 'not a failure of the catalog'})",
    }[record.verdict]
    lines = [f"{record.verdict.value}: {expected}, and {got}", f"  outcome:   {brief(record.outcome)}"]
    lines += [f"  note:      {note}" for note in record.notes]
    lines += [f"  log:       {end.log}" for end in record.outcome.ranks if end.log]
    lines.append(f"  reproduce: {record.reproduce}")
    return visible("\n".join(lines))
