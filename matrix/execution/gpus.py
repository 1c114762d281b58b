"""The GPUs of a machine, shared by the processes that run cases on it (pytest-xdist's workers, several runs).

Each GPU has a lock file, held by flock(2): the kernel releases it when the holder ends for any reason. A process gets
all GPUs of a case or waits. The waiting process holds the gate lock, so that two processes never wait for each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Final

from matrix.errors import MatrixError
from matrix.execution.ranks.job import RankJob
from matrix.execution.reproduction import JobRunner
from matrix.provision import host
from matrix.verdicts.outcome import Outcome, OutcomeKind

WAIT_S: Final = 3600.0  # s that a container may wait for GPUs that other runs hold; a job of Slurm has its own
GATE: Final = "gate"  # the lock of the process that collects GPUs
FIX: Final = "remove it, or name another folder in MEGATRIX_GPU_LOCKS"

LOCKS: Final = "MEGATRIX_GPU_LOCKS"
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


class Pool:
    """GPUs by UUID, which is the same in every container and job.

    `folder` holds the locks; it must be local to the machine and common to all its processes. `say` is called with a
    message before a wait.
    """

    def __init__(
        self, names: Sequence[str], folder: Path | None = None, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self._names, self._say = tuple(names), say
        self._folder = folder or locks()

    @contextlib.contextmanager
    def take(self, count: int) -> Iterator[tuple[str, ...]]:
        """Hold `count` GPUs for the length of the context; wait without a limit until they are free.

        First come, first served: a case that needs one GPU does not overtake one that waits for eight. Raises
        MatrixError if the pool has fewer, or the folder of the locks belongs to another user.
        """
        if count > len(self._names):
            raise MatrixError("not enough GPUs", got=f"{len(self._names)}", expected=f"at least {count}")
        made(self._folder)
        held: list[str] = []
        with contextlib.ExitStack() as locks:
            with self._wait(GATE):
                while len(held) < count:
                    others = [name for name in self._names if name not in held]
                    # No other process collects GPUs meanwhile: the awaited GPU becomes free for this one.
                    free = ((name, lock) for name in others if (lock := self._try(name)))
                    name, lock = next(free, None) or (others[0], self._wait(others[0]))
                    locks.enter_context(lock)
                    held.append(name)
            yield tuple(held)

    def _try(self, name: str) -> IO[str] | None:
        """Lock a file, and write this process into it; return None if another process holds it."""
        path = self._folder / name.replace("/", "-")
        try:
            file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+")
        except OSError as error:
            raise MatrixError("a GPU lock can't be used", where=str(path), got=error.strerror, fix=FIX) from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        self._sign(file)
        return file

    def _wait(self, name: str) -> IO[str]:
        """Lock a file when its holder has released it."""
        if lock := self._try(name):
            return lock
        file = (self._folder / name.replace("/", "-")).open("r+")
        what = "for its turn" if name == GATE else f"for {name}"
        self._say(f"waiting {what}, held by process {file.read().strip() or 'unknown'} (locks: {self._folder})")
        fcntl.flock(file, fcntl.LOCK_EX)
        self._sign(file)
        return file

    @staticmethod
    def _sign(file: IO[str]) -> None:
        file.seek(0)
        file.truncate()
        file.write(f"{os.getpid()}\n")
        file.flush()


class ReservingRunner:
    """Runs jobs on GPUs of a pool; each job sees only its own GPUs."""

    def __init__(self, runs: JobRunner, pool: Pool, count: int) -> None:
        self._runs, self._pool, self._count = runs, pool, count

    def run(self, job: RankJob) -> Outcome:
        """Wait for the GPUs, then run the job; its deadline starts after the wait."""
        with contextlib.ExitStack() as held:
            try:
                names = held.enter_context(self._pool.take(self._count))
            except MatrixError as error:
                return Outcome(OutcomeKind.UNAVAILABLE, error.brief)
            return self._runs.run(replace(job, env={**job.env, host.VISIBLE: ",".join(names)}))
