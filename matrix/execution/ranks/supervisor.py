"""The one way to start ranks: a job in, an outcome out, nothing left running."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final

from matrix.execution.ranks.cgroup import memory_group
from matrix.execution.ranks.descendants import end_below
from matrix.execution.ranks.forkserver import Forkserver, import_path
from matrix.execution.ranks.job import RankJob
from matrix.execution.ranks.memory import oom_kills, rise
from matrix.execution.ranks.rank_group import RankGroup
from matrix.execution.ranks.timeouts import Timeouts
from matrix.kit.rank import LackError
from matrix.store import secrets
from matrix.verdicts.blame import classify
from matrix.verdicts.outcome import Outcome, OutcomeKind

# With the last one, which imports sympy and dynamo, a rank imports megatron-core in 0.35 s, without it in 5.2 s.
PRELOAD: Final = ("numpy", "torch", "torch.distributed", "torch.distributed.checkpoint")


class Supervisor:
    """Runs jobs, one at a time, on ranks forked from one process that has `preload` imported.

    A context manager, one per process; the fork-server starts with the first job. Modules that this interpreter does
    not have are left out. `preload_path` comes first on sys.path there and, after the overlays, in the ranks.
    """

    def __init__(
        self,
        preload: Sequence[str] = PRELOAD,
        preload_path: Sequence[str] = (),
        patience: Timeouts = Timeouts(),  # noqa: B008  (frozen)
    ) -> None:
        self._server = Forkserver(preload, preload_path)
        self._patience = patience

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop()

    def run(self, job: RankJob) -> Outcome:
        """Run `job` to its end, at most 5 s past its deadline, and say what happened.

        The first job waits for the preload before its clock starts, and so does one that finds the server dead.
        No process of the job is left when this returns or raises; a Ctrl-C stops the ranks and is raised again.
        Where a limit of the job can't be set, its body does not run and the outcome is `unavailable`.
        Raises MatrixError when no rank can be started on this machine at all.
        """
        try:
            with memory_group(job.limits.memory) as group:
                return self._run(job, group)
        except LackError as lack:
            return Outcome(OutcomeKind.UNAVAILABLE, str(lack))

    def _run(self, job: RankJob, group: str) -> Outcome:
        lifeline = self._server.ensure()
        job.log_dir.mkdir(parents=True, exist_ok=True)
        kills = oom_kills(group=group)
        path = [*self._server.path, *import_path()]
        with tempfile.TemporaryDirectory(dir=self._server.folder, ignore_cleanup_errors=True) as folder:
            crew = RankGroup(job, Path(folder), path, self._server.modules, lifeline, self._patience, group)
            lost = ""
            try:
                crew.start()
                crew.watch()
                crew.stop(ask=True)
            except (EOFError, ConnectionError) as error:
                lost = f"the fork-server died as it started a rank: {error!r}"
            finally:
                try:
                    crew.stop(ask=False)  # what an exception, a Ctrl-C among them, left alive
                finally:  # a second Ctrl-C must not leave them either
                    seconds = crew.seconds
                    leftovers = end_below(self._server.pid, kill_s=self._patience.sweep_s)
                    crew.close()
        if crew.server_died:
            lost = lost or "the fork-server died while the job ran"
        if lost:
            outcome = Outcome(OutcomeKind.NOT_REACHED, reason=lost, ranks=crew.ends())
        elif crew.lack:
            outcome = Outcome(OutcomeKind.UNAVAILABLE, reason=crew.lack, ranks=crew.ends())
        else:
            outcome = classify(
                crew.ends(),
                logs=crew.logs(),
                traces=crew.traces(),
                deadline_s=job.deadline_s,
                timed_out=crew.timed_out,
                oom_kills=rise(kills, oom_kills(group=group)),
            )
        notes = (self._server.note,) if self._server.note and not job.fresh else ()
        outcome = replace(outcome, seconds=seconds, leftovers=leftovers, attempts=notes)
        return secrets.hidden(outcome, secrets.values(os.environ, job.env))
