"""The GPUs of a machine, shared by the processes that run cases on it (pytest-xdist's workers, several runs).

Each case that waits or runs has a claim: a folder with its demand and a pipe. Its process holds the pipe open. When the
process ends for any reason, the kernel closes the pipe, which wakes those that wait. A case gets all of its GPUs or
waits, and holds none meanwhile, so that two never wait for each other. Each process that waits decides, by the claims
of all, whose turn it is (matrix/planning/packing.py); the gate lock lets one process at a time decide.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from matrix.errors import MatrixError
from matrix.execution.ranks.job import RankJob
from matrix.execution.reproduction import JobRunner
from matrix.planning.packing import Demand, Free, RunningCase, next_to_start
from matrix.provision import host
from matrix.verdicts.outcome import Outcome, OutcomeKind

WAIT_S: Final = 3600.0  # s that a case in a container may wait for GPUs that other runs hold
JOB_WAIT_S: Final = 120.0  # the same in a job of Slurm: its GPUs are its own, but the task it replaces may still end
GATE: Final = "gate"  # the lock of the process that decides
# The start of a claim's name: its form, so that another version ignores it. The rest is its time: names sort by it.
CLAIM: Final = "claim-2-"
CONTENT: Final = "claim.json"  # in a claim's folder
ALIVE: Final = "alive"  # the pipe there, which the claim's process holds open
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
        raise unusable(folder, error) from None
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
    """A demand on some of the GPUs `among`, its process, and while it runs the GPUs that it holds.

    `ends` is the time of its expected end in s of time.time(), None while it waits.
    """

    demand: Demand
    among: tuple[str, ...]
    process: int
    holds: tuple[str, ...] = ()
    ends: float | None = None

    @contextlib.contextmanager
    def placed(self, folder: Path) -> Iterator[Path]:
        """Yield the claim's own folder in `folder`, for the length of the context. Raises MatrixError."""
        path = folder / f"{CLAIM}{time.time_ns():020}"
        with contextlib.ExitStack() as held:
            held.callback(shutil.rmtree, path, ignore_errors=True)
            try:
                path.mkdir(mode=0o700)
                os.mkfifo(path / ALIVE, 0o600)
                held.enter_context((path / ALIVE).open("r+b", buffering=0))  # "r" alone would wait for a writer
                (path / CONTENT).write_text(json.dumps(asdict(self)), encoding="utf-8")
            except OSError as error:
                raise unusable(path, error) from None
            yield path

    @classmethod
    def read(cls, path: Path) -> GpuClaim:
        """Return the claim of a folder. Raises FileNotFoundError if its process removes it."""
        found = json.loads((path / CONTENT).read_text(encoding="utf-8"))
        lists = {name: tuple(found[name]) for name in ("among", "holds")}
        return cls(**{**found, **lists, "demand": Demand(**found["demand"])})


class Pool:
    """GPUs by UUID, which is the same in every container and job.

    `folder` holds the claims; it must be local to the machine and common to all its processes. `say` is called with a
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
            yield self._held(demand, held)

    def _held(self, demand: Demand, held: contextlib.ExitStack) -> tuple[str, ...]:
        """Wait for the GPUs of a demand; return those that are held until `held` is closed."""
        claim = GpuClaim(demand, self._names, os.getpid())
        until = None if self._wait_s is None else time.monotonic() + self._wait_s
        said = False
        with contextlib.ExitStack() as waits:
            with self._gate():  # so that no other claim has this time
                mine = waits.enter_context(claim.placed(self._folder))
            while True:
                with contextlib.ExitStack() as opened:
                    with self._gate():
                        claims, ended = self._claims(opened)
                        names = self._granted(mine, claims)
                        if names is not None:
                            runs = replace(claim, holds=names, ends=time.time() + demand.seconds)
                            held.enter_context(runs.placed(self._folder))
                            return names
                    left = None if until is None else until - time.monotonic()
                    if left is not None and left <= 0:
                        raise MatrixError(
                            "the GPUs are not free", got=f"{self._holders(claims)} after {self._wait_s:g} s",
                            expected=f"{demand.gpus} of {len(self._names)} GPUs", where=str(self._folder),
                        )  # fmt: skip
                    if not said:
                        said = True
                        self._say(f"waiting for {demand.gpus} of {len(self._names)} GPUs, {self._holders(claims)}")
                    ended.poll(None if left is None else 1000 * left)

    def _granted(self, mine: Path, claims: Mapping[Path, GpuClaim]) -> tuple[str, ...] | None:
        """Return the GPUs that a claim gets now, None if it has to wait."""
        waiting = {path: one.demand for path, one in claims.items() if one.ends is None}
        running = [RunningCase(one.demand, one.ends) for one in claims.values() if one.ends is not None]
        held = {name for one in claims.values() for name in one.holds}
        free = [name for name in self._names if name not in held]
        memory = self._memory and self._memory - sum(one.demand.memory for one in running)
        place = next_to_start([*waiting.values()], running, Free(len(free), memory), time.time())
        return tuple(free[: waiting[mine].gpus]) if place is not None and [*waiting][place] == mine else None

    def _claims(self, opened: contextlib.ExitStack) -> tuple[dict[Path, GpuClaim], select.poll]:
        """Return the claims on these GPUs in the order of their arrival, and a poll that returns when one ends.

        It lasts until `opened` is closed. Later claims need none: what they take and return makes no case start. A case
        that starts ends its claim and has a new one, so that the others decide again. Claims of processes that have
        ended are removed.
        """
        found, ended = {}, select.poll()
        for path in sorted(self._folder.glob(f"{CLAIM}*")):
            with contextlib.suppress(FileNotFoundError):  # its process is removing it
                pipe = os.fdopen(os.open(path / ALIVE, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0)
                opened.enter_context(pipe)
                if pipe.read(1) is None:  # empty, and not at its end: a process holds it open
                    claim = GpuClaim.read(path)
                    if not {*claim.among}.isdisjoint(self._names):
                        found[path] = claim
                        ended.register(pipe, 0)  # its end is reported without being asked for
                    continue
            shutil.rmtree(path, ignore_errors=True)
        return found, ended

    def _holders(self, claims: Mapping[Path, GpuClaim]) -> str:
        """Return which processes have the GPUs, if any."""
        every = dict.fromkeys(str(claim.process) for claim in claims.values() if claim.ends is not None)
        held = f"held by process {', '.join(every)}" if every else "free, and another case is next"
        return f"{held} (locks: {self._folder})"

    @contextlib.contextmanager
    def _gate(self) -> Iterator[None]:
        """Hold the lock of the process that decides: a few ms."""
        path = self._folder / GATE
        try:
            file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        except OSError as error:
            raise unusable(path, error) from None
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def unusable(path: Path, error: OSError) -> MatrixError:
    """Return the error for a folder of locks that can't be used."""
    return MatrixError("the GPU locks can't be used", where=str(path), got=error.strerror, fix=FIX)


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
