"""The GPUs of a machine, shared by the processes that run cases on it (pytest-xdist's workers, several runs).

Each GPU has a lock file, and each case that waits or runs a claim, its demand. Both are held by flock(2): the kernel
releases them when the holder ends for any reason. A case gets all of its GPUs or waits, and holds none meanwhile, so
that two never wait for each other. Each process that waits decides, by the claims of all, whose turn it is
(matrix/planning/packing.py); the gate lock lets one process at a time decide.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Final

from matrix.errors import MatrixError
from matrix.execution.ranks.job import RankJob
from matrix.execution.reproduction import JobRunner
from matrix.planning.packing import Demand, Free, RunningCase, next_to_start
from matrix.provision import host
from matrix.verdicts.outcome import Outcome, OutcomeKind

WAIT_S: Final = 3600.0  # s that a case in a container may wait for GPUs that other runs hold
JOB_WAIT_S: Final = 120.0  # the same in a job of Slurm: its GPUs are its own, but the task it replaces may still end
LOOK_S: Final = 0.1  # s between two looks of a process that waits, 1 ms each; a case takes seconds
GATE: Final = "gate"  # the lock of the process that decides
# The start of a claim's name: its form, so that another version ignores it. The rest is its time: names sort by it.
CLAIM: Final = "claim-1-"
FIX: Final = "remove it, or name another folder in MEGATRIX_GPU_LOCKS"

LOCKS: Final = "MEGATRIX_GPU_LOCKS"
WAIT: Final = "MEGATRIX_GPU_WAIT"  # the longest wait in s, which is set in containers
TEMPORARY: Final = Path("/tmp")  # noqa: S108  (not $TMPDIR, which differs between the jobs of a user; checked below)


def locks(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the locks: $MEGATRIX_GPU_LOCKS, which is set in containers, or a folder of this user."""
    folder = environ.get(LOCKS)
    return Path(folder) if folder else TEMPORARY / f"megatrix-gpus-{os.getuid()}"


def made(folder: Path) -> Path:
    """Make the folder of the locks if it is missing; raise MatrixError unless it is this user's own or root's.

    Anyone can make a folder or a link of that name in /tmp first.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.lstat()
    except OSError as error:
        raise MatrixError("the GPU locks can't be used", where=str(folder), got=error.strerror, fix=FIX) from None
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid not in (0, os.geteuid()):
        raise MatrixError(
            "the GPU locks can't be used", where=str(folder),
            got=f"{'a folder' if stat.S_ISDIR(facts.st_mode) else 'no folder'} of user {facts.st_uid}",
            expected=f"a folder of user {os.geteuid()} or of root", fix=FIX,
        )  # fmt: skip
    return folder


def of_job(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs of this Slurm job by their names on the node; () outside of a job.

    CUDA_VISIBLE_DEVICES numbers them from 0 if Slurm hides the others (ConstrainDevices).
    """
    return tuple(name for name in environ.get("SLURM_JOB_GPUS", "").split(",") if name)


def wait_s(environ: Mapping[str, str]) -> float | None:
    """Return the longest wait of a case in s: $MEGATRIX_GPU_WAIT, or that of a Slurm job; None for no limit."""
    return float(environ[WAIT]) if WAIT in environ else JOB_WAIT_S if of_job(environ) else None


@dataclass(frozen=True)
class GpuClaim:
    """The content of a claim: a demand on some of the GPUs `among`, the process, and the time of its expected end.

    `ends` is in s of time.time(), None while it waits.
    """

    demand: Demand
    among: tuple[str, ...]
    process: int
    ends: float | None = None

    def write(self, file: IO[str]) -> None:
        """Add it to its file, whose last line counts: to truncate a file takes 2 ms."""
        file.write(json.dumps(asdict(self)) + "\n")
        file.flush()

    @classmethod
    def read(cls, file: IO[str]) -> GpuClaim:
        """Return the claim in a file."""
        found = json.loads(file.read().splitlines()[-1])
        return cls(**{**found, "demand": Demand(**found["demand"]), "among": tuple(found["among"])})


class Pool:
    """GPUs by UUID, which is the same in every container and job.

    `folder` holds the locks; it must be local to the machine and common to all its processes. `say` is called with a
    message before a wait, which lasts at most `wait_s`, None for no limit. `memory` is that of the host in bytes.
    """

    def __init__(
        self,
        names: Sequence[str],
        folder: Path | None = None,
        say: Callable[[str], None] = lambda text: None,
        *,
        memory: int | None = None,
        wait_s: float | None = None,
    ) -> None:
        self._names, self._say, self._memory, self._wait_s = tuple(names), say, memory, wait_s
        self._folder = folder or locks()

    @contextlib.contextmanager
    def take(self, demand: Demand) -> Iterator[tuple[str, ...]]:
        """Hold the GPUs of a demand for the length of the context; wait until they are free and it is its turn.

        Raises MatrixError if the pool has fewer, they are not free after the longest wait, or the folder of the locks
        belongs to another user.
        """
        if demand.gpus > len(self._names):
            raise MatrixError("not enough GPUs", got=f"{len(self._names)}", expected=f"at least {demand.gpus}")
        made(self._folder)
        with contextlib.ExitStack() as held:
            claim = GpuClaim(demand, self._names, os.getpid())
            with self._gate():  # so that no other claim has this time
                path = self._folder / f"{CLAIM}{time.time_ns():020}"
                file = held.enter_context(self._opened(path))
                held.callback(path.unlink, missing_ok=True)
                lock(file)
                claim.write(file)
            ends = None if self._wait_s is None else time.monotonic() + self._wait_s
            said = False
            while True:
                with self._gate():
                    names = self._granted(path, demand, held)
                    if names is not None:
                        replace(claim, ends=time.time() + demand.seconds).write(file)
                        break
                if ends is not None and time.monotonic() > ends:
                    raise MatrixError(
                        "the GPUs are not free", got=f"{self._holders()} after {self._wait_s:g} s",
                        expected=f"{demand.gpus} of {len(self._names)} GPUs", where=str(self._folder),
                    )  # fmt: skip
                if not said:
                    said = True
                    self._say(f"waiting for {demand.gpus} of {len(self._names)} GPUs, {self._holders()}")
                time.sleep(LOOK_S)
            yield names

    def _granted(self, claim: Path, demand: Demand, held: contextlib.ExitStack) -> tuple[str, ...] | None:
        """Return the GPUs that a claim gets now, locked until `held` is closed; None if it has to wait."""
        with contextlib.ExitStack() as locked:
            paths = {name: self._folder / name.replace("/", "-") for name in self._names}
            files = {name: locked.enter_context(self._opened(path)) for name, path in paths.items()}
            free = [name for name, file in files.items() if lock(file)]
            claims = self._claims()
            waiting = [other for other, one in claims.items() if one.ends is None]
            running = [RunningCase(one.demand, one.ends) for one in claims.values() if one.ends is not None]
            memory = self._memory and self._memory - sum(one.demand.memory for one in running)
            demands = [claims[other].demand for other in waiting]
            place = next_to_start(demands, running, Free(len(free), memory), time.time())
            if place is None or waiting[place] != claim:
                return None
            names = tuple(free[: demand.gpus])
            for name in files.keys() - {*names}:
                files[name].close()
            held.push(locked.pop_all())
        return names

    def _claims(self) -> dict[Path, GpuClaim]:
        """Return the claims on these GPUs in the order of their arrival; remove those whose process has ended."""
        found = {}
        for path in sorted(self._folder.glob(f"{CLAIM}*")):
            with self._opened(path) as file:
                if lock(file):
                    path.unlink(missing_ok=True)  # its process may be ending
                    continue
                claim = GpuClaim.read(file)
            if not {*claim.among}.isdisjoint(self._names):
                found[path] = claim
        return found

    def _holders(self) -> str:
        """Return which processes have the GPUs, if any."""
        with self._gate():
            every = dict.fromkeys(str(claim.process) for claim in self._claims().values() if claim.ends is not None)
        held = f"held by process {', '.join(every)}" if every else "free, and another case is next"
        return f"{held} (locks: {self._folder})"

    @contextlib.contextmanager
    def _gate(self) -> Iterator[None]:
        """Hold the lock of the process that decides: a few ms."""
        with self._opened(self._folder / GATE) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @staticmethod
    def _opened(path: Path) -> IO[str]:
        try:
            return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+")
        except OSError as error:
            raise MatrixError("a GPU lock can't be used", where=str(path), got=error.strerror, fix=FIX) from None


def lock(file: IO[str]) -> bool:
    """Lock a file until it is closed; return False if another process holds it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class ReservingRunner:
    """Runs jobs on GPUs of a pool; each job sees only its own GPUs."""

    def __init__(self, runs: JobRunner, pool: Pool, demand: Demand) -> None:
        self._runs, self._pool, self._demand = runs, pool, demand

    def run(self, job: RankJob) -> Outcome:
        """Wait for the GPUs, then run the job; its deadline starts after the wait."""
        with contextlib.ExitStack() as held:
            try:
                names = held.enter_context(self._pool.take(self._demand))
            except MatrixError as error:
                return Outcome(OutcomeKind.UNAVAILABLE, error.brief)
            return self._runs.run(replace(job, env={**job.env, host.VISIBLE: ",".join(names)}))
