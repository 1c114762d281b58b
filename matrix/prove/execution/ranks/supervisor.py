"""The supervisor: the only entry point that starts ranks. It runs a job, returns its outcome and ends every process.

A memory cgroup for one job is created before its ranks start, and removed after the last rank has ended.

`debug` runs rank 0 of a job in this process, where a debugger reaches the frames of upstream; the others are new
processes. Nothing bounds it: no deadline, no memory limit, no forkserver. What it returns or raises is no result.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

from matrix.ground.catalog.codec import decode
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.blame import classify
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.kit.rank import LackError, Rank
from matrix.prove.execution.ranks import mpirun
from matrix.prove.execution.ranks.descendants import end_below
from matrix.prove.execution.ranks.forkserver import PRELOAD_S, Forkserver, environment, import_path
from matrix.prove.execution.ranks.forkserver_child import FRESH
from matrix.prove.execution.ranks.overlay_server import OverlayServers
from matrix.prove.execution.ranks.rank_group import RankGroup
from matrix.prove.execution.ranks.rank_main import imported, preload
from matrix.prove.execution.ranks.rank_spec import Admission, GroupRequest, RankJob, Timeouts
from matrix.prove.execution.ranks.shared_gpu import of_gpus, read_log
from matrix.prove.store.secrets import masked_outcome, values
from matrix.read import kernel
from matrix.read.commands import python_code
from matrix.read.machine.hardware import LIMITS, allowed, available, memberships, oom_kills, rise

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
    this environment and all that looks like one are masked in logs, stacks and outcomes. A `deadline_s`
    above PRELOAD_S is also that of the imports of `preload`.
    """

    def __init__(
        self,
        preload: Sequence[str] = PRELOAD,
        preload_path: Sequence[str] = (),
        secrets: Sequence[str] = (),
        deadline_s: float = 0.0,
    ) -> None:
        self._server = Forkserver(preload, preload_path, preload_s=max(PRELOAD_S, deadline_s))
        self._overlays = OverlayServers(self._server)
        self._timeouts, self._secrets = Timeouts(), secrets

    def __exit__(self, *error: object) -> None:
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
                with server.answering():
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
            log = read_log(Path(folder)) if job.gpus else None
        outcome = outcome_of(group, job, rise(kills, oom_kills(group=cgroup)), lost)
        notes = tuple(filter(None, (self._server.note * (not job.fresh), overlay.note if overlay else "")))
        outcome = of_gpus(outcome, log, shared=bool(job.nccl)) if log else outcome
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


# Variables of the person's terminal and debugger, which a rank does not have otherwise.
TERMINAL: Final = ("TERM", "COLUMNS", "LINES", "PYTHONBREAKPOINT", "NO_COLOR", "FORCE_COLOR")


def debug(job: RankJob) -> Any:
    """Run rank 0 of a job in this process and return its value; raise what it raises.

    The process keeps the modules that the rank imported or hid. The other ranks end with this one. Raises MatrixError
    for a job that mpirun starts.
    """
    if job.launcher == mpirun.NAME:
        raise MatrixError("mpirun starts the ranks of this case", expected="a case whose launcher is torchrun")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        (Path(folder) / "work").mkdir()
        job.log_dir.mkdir(parents=True, exist_ok=True)
        own, *others = [json.loads(spec) for spec in GroupRequest(job, Path(folder), import_path()).specs()]
        for rank, spec in enumerate(others, 1):
            stack.enter_context(_other(spec, job.log_dir / f"rank-{rank}.log"))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("default")  # pytest's settings may make errors of upstream's warnings
        spec = stack.enter_context(_as_rank(own, job.target))
        sys.modules.update(dict.fromkeys(job.hidden, cast(ModuleType, None)))
        for library in job.libraries:
            preload(library)
        return imported(job.target)(decode(Rank, spec["rank"]), **job.kwargs)


@contextmanager
def _as_rank(spec: dict[str, Any], target: str) -> Iterator[dict[str, Any]]:
    """Set the variables, the arguments and sys.path of a rank for the length of a block."""
    arguments, path = sys.argv[:], sys.path[:]
    terminal = {name: os.environ[name] for name in TERMINAL if name in os.environ}
    with environment(spec["env"] | terminal):
        sys.argv[:], sys.path[:] = [target], spec["path"]
        try:
            yield spec
        finally:
            sys.argv[:], sys.path[:] = arguments, path


@contextmanager
def _other(spec: dict[str, Any], log: Path) -> Iterator[None]:
    """Run another rank in a new interpreter until the block ends."""
    task, nothing = os.memfd_create("task"), os.open(os.devnull, os.O_WRONLY)
    with os.fdopen(os.dup(task), "w", encoding="utf-8") as file:
        json.dump(spec | {"fresh": True, "preloaded": []}, file)
    os.lseek(task, 0, os.SEEK_SET)
    fds, parent = (task, nothing, nothing), os.getpid()
    code = FRESH.format(path=spec["path"], fds=fds)
    with log.open("wb") as output:
        process = subprocess.Popen(
            python_code(sys.executable, code),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=spec["env"],
            pass_fds=(task, nothing),
            start_new_session=True,
            preexec_fn=lambda: kernel.die_with_parent(parent),
        )
    os.close(task)
    os.close(nothing)
    try:
        yield
    finally:
        process.kill()
        process.wait()


# Limits on swap too: a job above its limit must be killed, not slowed down by swapping.
WITH_SWAP: Final = {"memory.memsw.limit_in_bytes": None, "memory.swap.max": 0}  # None: the limit itself


@contextmanager
def memory_group(limit_bytes: int | None, root: Path = Path("/")) -> Iterator[str]:
    """Make a group of at most `limit_bytes` and yield its folder, "" for None. Raises LackError if that is impossible.

    A process that already has this limit needs no group: its container was started with it (execution/inside.py).
    An empty group remains if its owner is killed by SIGKILL.
    """
    if limit_bytes is None or allowed(limit_bytes + 1, root) == limit_bytes:
        yield ""
        return
    free = available(root)
    if free is not None and limit_bytes > free:
        raise LackError(f"needs {limit_bytes >> 20} MiB of memory for its limit; {free >> 20} MiB are available")
    try:
        folder = Path(tempfile.mkdtemp(prefix="megatrix-", dir=parent(root)))
    except OSError as error:
        raise LackError(f"no memory cgroup can be created: {error}") from None
    try:
        try:
            limit(folder, limit_bytes)
        except OSError as error:
            raise LackError(f"a memory cgroup rejects its limit: {error}") from None
        yield str(folder)
    finally:
        with suppress(OSError):  # busy while a killed process exits; an empty group costs nothing
            folder.rmdir()


def parent(root: Path) -> Path:
    """Return the parent of the new group: this process's own (v1), or the nearest that delegates memory (v2).

    Raises LackError if there is none.
    """
    for controller, mounted, group in memberships(root):
        if controller:
            return group if group.is_dir() else mounted  # a container may see its own group as the root
        for folder in (group, *group.parents):
            delegated = folder / "cgroup.subtree_control"
            if delegated.is_file() and re.search(r"\bmemory\b", delegated.read_text()) and os.access(folder, os.W_OK):
                return folder
            if folder == mounted:
                break
    raise LackError("no memory cgroup is usable: neither a v1 controller nor a v2 group that delegates memory")


def limit(folder: Path, limit_bytes: int) -> None:
    """Set the limit of a group. Raises OSError."""
    name = next((name for name in LIMITS if (folder / name).exists()), LIMITS[-1])
    (folder / name).write_text(str(limit_bytes), encoding="ascii")
    for name, value in WITH_SWAP.items():
        if (folder / name).exists():  # missing if the kernel does not account for swap
            (folder / name).write_text(str(limit_bytes if value is None else value), encoding="ascii")
