"""The supervisor: the only entry point that starts ranks. It runs a job, returns its outcome and ends every process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final

from matrix.ground.verdicts.blame import classify
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.kit.rank import LackError
from matrix.prove.execution.ranks.cgroup import memory_group
from matrix.prove.execution.ranks.descendants import end_below
from matrix.prove.execution.ranks.forkserver import Forkserver, import_path
from matrix.prove.execution.ranks.overlay_server import OverlayServers
from matrix.prove.execution.ranks.rank_group import RankGroup
from matrix.prove.execution.ranks.rank_spec import Admission, GroupRequest, RankJob, Timeouts
from matrix.prove.store.secrets import masked_outcome, values
from matrix.read.machine.hardware import oom_kills, rise

# What cases import of torch; megatron-core itself differs from case to case. The checkpoint imports sympy: a rank then
# imports megatron-core 0.8 in 0.1 s, else in 5 s. An optimizer on torch 2.13 imports dynamo, megatron-core >= 0.14
# hipify: 0.7 s and 0.5 s of processor for each rank. torch.utils.cpp_extension reads CUDA_HOME at its import, which at
# level gpu is the machine's: it is not preloaded.
PRELOAD: Final = (
    "numpy",
    "torch",
    "torch.distributed",
    "torch.distributed.checkpoint",
    "torch._dynamo",
    "torch.utils.hipify.hipify_python",
)


class Supervisor(AbstractContextManager["Supervisor"]):
    """Runs jobs, one at a time, on ranks forked from one process that has imported `preload`.

    A context manager, one per process; the forkserver starts with the first job. Missing modules are skipped.
    `preload_path` comes first on sys.path of the forkserver, and after the overlays in the ranks. `secrets`, those of
    this environment and all that looks like one are masked in logs, stacks and outcomes.
    """

    def __init__(
        self,
        preload: Sequence[str] = PRELOAD,
        preload_path: Sequence[str] = (),
        timeouts: Timeouts = Timeouts(),  # noqa: B008  (frozen)
        secrets: Sequence[str] = (),
    ) -> None:
        self._server = Forkserver(preload, preload_path)
        self._overlays = OverlayServers(self._server)
        self._timeouts, self._secrets = timeouts, secrets

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._overlays.stop()
        self._server.stop()

    def run(self, job: RankJob, admission: Admission | None = None) -> Outcome:
        """Run `job` to its end, at most 5 s past its deadline, and return its outcome.

        `admission` is entered when all ranks have imported their target, and left when no process of the job is left.
        The wait for it counts in no deadline. If one fails before, or it raises LackError, the body does not run.
        The deadline of the first job, and of a job that has to restart the forkserver, counts from after the preload.
        No process of the job is left when this returns or raises; a Ctrl-C stops the ranks and is raised again.
        If a limit of the job can't be set, its body does not run and the outcome is `unavailable`.
        Raises MatrixError if no rank can be started on this machine.
        """
        try:
            with memory_group(job.limits.memory) as cgroup:
                return self._run(job, cgroup, admission)
        except LackError as lack:
            return Outcome(OutcomeKind.UNAVAILABLE, str(lack))

    def _run(self, job: RankJob, cgroup: str, admission: Admission | None) -> Outcome:
        self._server.ensure()
        overlay = self._overlays.of(job)
        server = overlay if overlay and overlay.pid else self._server
        job.log_dir.mkdir(parents=True, exist_ok=True)
        kills = oom_kills(group=cgroup)
        path = [*self._server.path, *import_path()]
        scratch = tempfile.TemporaryDirectory(dir=self._server.folder, ignore_cleanup_errors=True)
        with ExitStack() as held, scratch as folder:
            request = GroupRequest(job, Path(folder), path, self._server.modules, cgroup, gated=admission is not None)
            secrets = values(os.environ, job.env, given=self._secrets)
            group = RankGroup(request, server.lifeline, self._timeouts, secrets)
            lost = ""
            try:
                with server.starting():
                    group.start()
                if admission and group.wait_until_ready():
                    with group.paused():
                        environ = held.enter_context(admission())
                    group.open_gates(environ)
                group.watch()
                group.stop(collect_stacks=True)
            except (EOFError, ConnectionError) as error:
                lost = f"the forkserver died, or was stopped, as it started a rank: {error!r}"
            finally:
                try:
                    group.stop(collect_stacks=False)  # after an exception or a Ctrl-C ranks may still run
                finally:  # also after a second Ctrl-C
                    seconds = group.seconds
                    limit_s = self._timeouts.sweep_s
                    leftovers = end_below(self._server.pid, kill_s=limit_s, spared=self._overlays.pids)
                    group.close()
        outcome = outcome_of(group, job, rise(kills, oom_kills(group=cgroup)), lost)
        notes = tuple(filter(None, (self._server.note * (not job.fresh), overlay.note if overlay else "")))
        outcome = replace(outcome, seconds=seconds, leftovers=leftovers, attempts=notes)
        return masked_outcome(outcome, secrets)


def outcome_of(group: RankGroup, job: RankJob, oom_kills: int, lost: str) -> Outcome:
    """Return the outcome of a job whose ranks have ended; `lost` is why the forkserver started none, if it did not."""
    if group.server_died:
        lost = lost or "the forkserver died while the job ran"
    if lost:
        return Outcome(OutcomeKind.NOT_REACHED, reason=lost, ranks=group.ends())
    if group.lack:
        return Outcome(OutcomeKind.UNAVAILABLE, reason=group.lack, ranks=group.ends())
    return classify(
        group.ends(),
        logs=group.logs(),
        traces=group.traces(),
        deadline_s=job.deadline_s,
        timed_out=group.timed_out,
        oom_kills=oom_kills,
    )
