"""The session of one pytest process in a cell's interpreter: its cases and its journal."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Callable, Collection
from functools import cached_property, partial
from pathlib import Path

from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.outcome import Outcome
from matrix.ground.verdicts.planned import Planned
from matrix.ground.verdicts.record import Record
from matrix.prove.execution import interrupt
from matrix.prove.execution.case_context import CaseContexts, Options
from matrix.prove.execution.gpus import Pool, locks, pool_of
from matrix.prove.execution.installation import Installation
from matrix.prove.execution.preflights import read_case
from matrix.prove.execution.ranks.rank_spec import RankJob
from matrix.prove.execution.ranks.shared_gpu import admitted
from matrix.prove.execution.ranks.supervisor import PRELOAD, Supervisor
from matrix.prove.execution.relay import JournalSink, Sender
from matrix.prove.execution.reproduction import Reproduction
from matrix.prove.planning.packing import Demand, ranks_of_value
from matrix.prove.provision.case_overlays import LOG, Builds, OverlayBuilder, replaced
from matrix.prove.store.journal import Journal
from matrix.prove.store.paths import OUT, Paths, make_folder
from matrix.prove.store.secrets import values
from matrix.prove.store.stored_run import RunLock, StoredRun


class Session:
    """The session of one pytest process. Its journal, supervisor and overlays are created at first use."""

    def __init__(self, options: Options, out: Path) -> None:
        interrupt.once()
        if sys.flags.optimize:
            raise MatrixError("ranks would run without asserts", got="python -O or PYTHONOPTIMIZE", fix="leave it out")
        self.options, self.out = options, out
        self.installation = Installation.current(options.base)
        self.records: list[Record] = []
        self.say: Callable[[str], None] = lambda text: None  # prints a message while a case waits
        self._lock: RunLock | None = None
        self._builder: OverlayBuilder | None = None

    @cached_property
    def planned(self) -> list[Planned]:
        """Return the cases of this session: those of its run's plan without a result, or all of its base."""
        if not self.options.run_folder:
            return self.installation.cases(self.options.select)
        pending = StoredRun(self.options.run_folder).pending([self.installation.base])
        keys = self.options.keys or {planned.key for planned in pending}
        return [self.installation.here(planned) for planned in pending if planned.key in keys]

    @cached_property
    def ranks_of_value(self) -> dict[str, int]:
        """Return which cases come first, by key: of each entry, of those that can run on this machine."""
        founding = {failure.id for failure in self.installation.catalog.failures if failure.stack}
        return ranks_of_value(self.planned, founding, lambda item: not self._contexts.lack(item))

    def choose(self, keys: Collection[str]) -> None:
        """Limit the plan to these cases: those that pytest did not deselect."""
        self.planned = [planned for planned in self.planned if planned.key in keys]

    @cached_property
    def run_folder(self) -> Path:
        """Return the folder of the run; a run of this session makes it with its journal."""
        return self.options.run_folder or Paths(self.out).next_run(self.installation.base)

    @cached_property
    def supervisor(self) -> Supervisor:
        """Return the supervisor; its forkserver starts with the first case, and imports torch if a case needs that."""
        failure = self.installation.catalog.failure
        cases = (failure(planned.failure).case_named(planned.case) for planned in self.planned if planned.reproducible)
        replaces = any(self.installation.environment.packages.keys() & replaced(planned) for planned in self.planned)
        preload = PRELOAD if any(case.preload for case in cases) and not replaces else ()
        return Supervisor(preload, secrets=self.secrets, deadline_s=self.options.deadline_s)

    @cached_property
    def gpus(self) -> Pool:
        """Return the GPUs that this process may use, shared with other processes that run cases on this machine."""
        return pool_of(self.installation.host, lambda text: self.say(text))

    @cached_property
    def sender(self) -> Sender:
        """Return the connection to the process that started this one; when that ends, this one is interrupted."""
        return Sender(self.options.relay, lambda: os.kill(os.getpid(), signal.SIGINT))

    @cached_property
    def secrets(self) -> tuple[str, ...]:
        """Return the secrets of this environment and of the run: tox lets few variables of the run through."""
        return values(given=self.sender.secrets)

    @cached_property
    def journal(self) -> JournalSink | Sender:
        """Return the session's journal; for a run of this session, write its plan first."""
        if not self.options.run_folder:
            make_folder(self.run_folder)
            self._lock = RunLock(self.run_folder)
            StoredRun.create(self.run_folder, self.planned)
        return JournalSink(Journal.new(self.run_folder, secrets=self.secrets), self.sender, self.records.append)

    @cached_property
    def _contexts(self) -> CaseContexts:
        return CaseContexts(self.installation, self.options, self.run_folder)

    @cached_property
    def builds(self) -> Builds:
        """Return the overlays with a build of Transformer Engine, by the keys of the cases that need them."""
        builds = {planned.key: self._contexts.builds_of(planned) for planned in self.planned}
        return {key: specs for key, specs in builds.items() if specs}

    def start_builds(self) -> None:
        """Start the builds, beside the cases that need none."""
        builds = {spec.build: spec for specs in self.builds.values() for spec in specs if spec.build}
        if builds:
            _ = self.journal  # it makes the folder of the run
            log = self.run_folder / LOG
            self.say(f"builds Transformer Engine {', '.join(build.te for build in builds)}: {log}")
            self._builder = OverlayBuilder(list(builds.values()), log)

    def reproduction(self, planned: Planned) -> Reproduction:
        """Return the reproduction of a case."""
        catalog = self.installation.catalog
        failure = catalog.failure(planned.failure)
        context = self._contexts.of(planned)

        def run_job(job: RankJob) -> Outcome:
            placement = context.placement
            if not placement.gpus:
                return self.supervisor.run(job)
            case = failure.case_named(planned.case)
            demand = Demand(placement.gpus, planned.seconds, case.limits.memory or 0, case.part(placement.gpus))
            return self.supervisor.run(job, partial(admitted, partial(self.gpus.admit, demand), placement, locks()))

        def read() -> Outcome:
            return read_case(failure, failure.case_named(planned.case), planned.cell)

        return Reproduction(planned, failure, catalog.failures, context, run_job, self.journal, read)

    @property
    def summary(self) -> list[str]:
        """Return the last lines of a run of this session: its id, its verdicts, its page; [] for a part of a run."""
        if self.options.run_folder or not self.records:
            return []
        run, counts = self.run_folder.name, Counter(record.verdict.value for record in self.records)
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
        report = [*os.environ.get("MEGATRIX_COMMAND", "megatrix").split(), "report", run]
        report += [] if self.out == OUT else [f"--out={self.out}"]
        page = f"page: {Paths(self.out).pages(run).page}, written by `{shlex.join(report)}`"
        return [f"megatrix: run {run}: {verdicts}", f"megatrix: {page}"]

    def close(self) -> None:
        """Stop the forkserver and close the journal, if they were created."""
        if self._builder:
            self._builder.stop()
        if "supervisor" in self.__dict__:
            self.supervisor.__exit__(None, None, None)
        if "journal" in self.__dict__:
            self.journal.close()
        if self._lock:
            self._lock.release()


def item_name(planned: Planned) -> str:
    """Return the name of a case in pytest, unique in a plan.

    It has no brackets: pytest reads them as parameters of a function, and --lf does not find such an item.
    """
    return f"{planned.failure}-{planned.case}-{planned.level.value}-{planned.cell.id}"
