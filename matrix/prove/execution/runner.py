"""A run from plan to report: cached and unavailable cases are recorded at once, the engine runs the others."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Final

from matrix.ground.catalog.folders import with_site
from matrix.ground.catalog.model import HOST, Catalog
from matrix.ground.catalog.regular_file import read_regular_text
from matrix.ground.errors import ExitStatus, MatrixError, closest
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.ground.verdicts.planned import Planned
from matrix.ground.verdicts.record import SILENT, Record, Verdict
from matrix.ground.verdicts.text import tail
from matrix.prove.execution import interrupt
from matrix.prove.execution.cache_key import ImmediateResults
from matrix.prove.execution.engine import Engine, EngineRequest, EngineResult
from matrix.prove.execution.relay import Receiver
from matrix.prove.execution.reproduction import not_run
from matrix.prove.provision import host
from matrix.prove.store import stored_run
from matrix.prove.store.history import History, with_history
from matrix.prove.store.journal import Journal, settle
from matrix.prove.store.paths import NIGHT, Paths
from matrix.prove.store.secrets import mask_file
from matrix.prove.store.stored_run import Night, RunLock, StoredRun

LOG_LINES: Final = 12  # of the engine, in an error
ENGINE_LOG: Final = "engine.log"  # in the run's folder: the output of pytest


@dataclass(frozen=True)
class Request:
    """What a run does. `resume` is an earlier run to finish with its own plan.

    With `attach` the engine uses the processes of that run that still run; otherwise they are awaited first. After
    `limit_s` seconds the run stops; cases without a result are not reached. `site` defaults to this machine. `environ`
    are the variables from which its processes get theirs, and in which its clones and settings are named.
    """

    planned: Sequence[Planned] = ()
    out: Path = field(default_factory=lambda: Paths().out)
    cache: bool = True
    resume: StoredRun | None = None
    attach: bool = False
    label: str = NIGHT
    limit_s: float | None = None
    site: host.ExecutionSite | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)


def ignore(event: object) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Events:
    """What a run calls: `show` with each record when it arrives.

    `open` is called first, with the cases that this machine can't run (default: `show` with each) and those that
    begin. `warn` is called with warnings. `ended` is called at the end, also after a Ctrl-C, which is raised again; the
    default adds the run to the history and writes no page.
    """

    show: Callable[[Record], None] = ignore
    warn: Callable[[str], None] = ignore
    ended: Callable[[StoredRun, History], Night] = stored_run.added
    open: Callable[[Sequence[Record], Sequence[Planned]], None] | None = None


def execute(request: Request, catalog: Catalog, engine: Engine, events: Events = Events()) -> Night:
    """Run the cases and return the night. Without a usable history the run warns and has an empty one.

    Raises MatrixError, also if another process works on the run; a run that can't start leaves no folder.
    """
    if not request.resume:
        engine.ready({case.cell.base for case in request.planned})
    run, lock = start(request, catalog, events.warn)
    history, warn_once = Paths(request.out).history, cache(events.warn)

    def ended() -> Night:
        return with_history(history, partial(events.ended, run), warn_once)

    with lock:
        try:
            with_history(history, Work(request, catalog, engine, events, run).finish, warn_once)
        except MatrixError:
            if request.resume or (run.folder / ENGINE_LOG).exists():
                ended()
            else:  # the engine started nothing: no run to report or resume
                shutil.rmtree(run.folder, ignore_errors=True)
            raise
        except BaseException:
            ended()
            raise
        return ended()


def earlier(out: Path, name: str) -> StoredRun:
    """Return the run of this name. Raises MatrixError if it does not exist."""
    run = StoredRun(Paths(out).run(name))
    if not run.folder.is_dir():
        names = [path.name for path in run.folder.parent.glob("*")]
        expected, fix = f"a folder under {run.folder.parent}", closest(name, names)
        raise MatrixError("no such run", got=name, expected=expected, fix=fix)
    return run


def start(request: Request, catalog: Catalog, warn: Callable[[str], None]) -> tuple[StoredRun, RunLock]:
    """Return the run with its plan, and the lock on it."""
    run = request.resume
    if run is None:
        folder = Paths(request.out).new_run(request.label)
        lock = RunLock(folder)
        return StoredRun.create(folder, request.planned, with_site(request.environ, *catalog.site)), lock
    lock = RunLock(run.folder)
    for case in run.planned:
        check(case, catalog)
    if not request.attach:
        settle(run.folder, lambda: warn("waiting until the processes of the interrupted run have ended"))
    return run, lock


def check(planned: Planned, catalog: Catalog) -> None:
    """Raise MatrixError unless the catalog has this case of a plan, as it was planned."""
    failure = catalog.failure(planned.failure)
    if planned.cell.base != HOST:
        catalog.base(planned.cell.base)
    if not planned.reproducible:
        return
    cases = (case for case in failure.case if case.name == planned.case and planned.level in case.levels)
    case = next(cases, None)
    if case is None or (case.ranks, case.launcher) != (planned.ranks, planned.launcher):
        raise MatrixError(
            "the catalog does not have this planned case",
            got=f"{planned.key}, {planned.ranks} ranks, {planned.launcher}",
            expected=f"{case.ranks} ranks, {case.launcher}" if case else "a case of the failure at this level",
            fix="start a new run: the plan was changed, or is of another version",
        )


class Work:
    """What is left of a stored run: first the cases that need no process, then those of the engine."""

    def __init__(self, request: Request, catalog: Catalog, engine: Engine, events: Events, run: StoredRun) -> None:
        self._request, self._catalog, self._engine, self._events, self._run = request, catalog, engine, events, run
        self._log = run.folder / ENGINE_LOG

    def finish(self, history: History) -> None:
        """Give each case a result, unless the engine ends early."""
        request, name = self._request, self._run.folder.name
        site = request.site or host.look()
        immediate = ImmediateResults(self._catalog, self._engine, site, history, name, request.environ)
        waiting, unavailable, cached = list[Planned](), list[Record](), list[Record]()
        with Journal.new(self._run.folder) as journal:
            if request.resume:
                machine = site.text if isinstance(site, host.LocalSite) else None
                for planned in self._run.unavailable(machine):
                    if not immediate.unavailable(planned):
                        journal.started(planned.key)
            for planned in self._run.pending():
                if record := immediate.unavailable(planned):
                    unavailable.append(record)
                elif record := (self._request.cache and immediate.cached(planned)) or None:
                    cached.append(record)
                else:
                    waiting.append(planned)
                if record:
                    journal.result(record)
        if self._events.open:
            self._events.open(unavailable, waiting)
        for record in cached if self._events.open else unavailable + cached:
            self._events.show(record)
        if not waiting:
            return
        result = self._run_engine(waiting)
        self._record_refused(result)
        if not (lost := len(self._run.pending())):
            return
        missing = f"{lost} of {len(waiting)} cases were not reached"
        if result.out_of_time:
            self._events.warn(f"{missing} within the time limit; --resume runs them")
        else:
            self._events.warn(f"{missing}: the engine ended with {result.status}; see its output in {self._log}")

    def _run_engine(self, waiting: Sequence[Planned]) -> EngineResult:
        bases = list(dict.fromkeys(planned.cell.base for planned in waiting))
        with Receiver(self._events.show) as receiver:
            try:
                with interrupt.after(self._request.limit_s):
                    return self._engine.run(EngineRequest(bases, self._run, self._log, receiver.address))
            except interrupt.TimeLimitReached:
                return EngineResult(out_of_time=True)
            finally:
                mask_file(self._log)

    def _record_refused(self, result: EngineResult) -> None:
        """Record the cases of bases on which no process could start as unavailable."""
        with Journal.new(self._run.folder) as journal:
            for planned in self._run.pending(result.refused):
                outcome = Outcome(OutcomeKind.UNAVAILABLE, result.refused[planned.cell.base])
                record = not_run(planned, self._catalog, outcome, self._run.folder.name)
                journal.result(record)
                self._events.show(record)


def results(ended: Night, out: Path) -> tuple[Record, ...]:
    """Return the records of a run. Raises MatrixError, with what the engine printed, for a case without a result."""
    for record in ended.records:
        if record.outcome.kind is OutcomeKind.NOT_REACHED:
            log = Paths(out).run(ended.run) / ENGINE_LOG
            printed = tail(read_regular_text(log), LOG_LINES) if log.is_file() else "nothing"
            raise MatrixError(
                "the engine ended without a result",
                where=record.key,
                got=f"{record.outcome.reason}; {log} ends with:\n{printed}",
                expected="a result for each case",
                fix="mend what the log shows, and repeat the command: results are kept",
            )
    return ended.records


def exit_status(ended: Night, *, whole: bool = False) -> ExitStatus:
    """Return BAD if a record is red or not reached, NOTHING if none has a result or a level is missing, else GOOD.

    `whole`: also NOTHING if one has no result.
    """
    if any(record.verdict.colour == "red" or record.verdict is Verdict.NOT_REACHED for record in ended.records):
        return ExitStatus.BAD
    silent = [record.verdict in SILENT for record in ended.records] or [True]
    return ExitStatus.NOTHING if ended.missing or (any if whole else all)(silent) else ExitStatus.GOOD
