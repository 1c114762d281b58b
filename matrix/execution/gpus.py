"""The GPUs of a machine, shared by the processes that run cases on it (pytest-xdist's workers, several runs).

Each GPU has a lock file, held by flock(2): the kernel releases it when the holder ends for any reason. A process gets
all GPUs of a case or waits. The waiting process holds the gate lock, so that two processes never wait for each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Final

from matrix.errors import MatrixError
from matrix.execution.ranks.job import RankJob
from matrix.execution.reproduction import JobRunner
from matrix.verdicts.outcome import Outcome

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
LOCKS: Final = "MEGATRIX_GPU_LOCKS"


def visible(count: int, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the GPUs that this process may use: those of CUDA_VISIBLE_DEVICES, else all `count`."""
    given = environ.get(VISIBLE)
    return tuple(map(str, range(count))) if given is None else tuple(name for name in given.split(",") if name)


def locks(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the locks: $MEGATRIX_GPU_LOCKS, which is set in containers, or a folder of this user."""
    folder = environ.get(LOCKS)
    return Path(folder) if folder else Path(tempfile.gettempdir()) / f"megatrix-gpus-{os.getuid()}"


def of_job(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs of this Slurm job by their names on the node; () outside of a job.

    CUDA_VISIBLE_DEVICES numbers them from 0 if Slurm hides the others (ConstrainDevices).
    """
    return tuple(name for name in environ.get("SLURM_JOB_GPUS", "").split(",") if name)


class Pool:
    """GPUs by name. `folder` holds the locks; it must be local to the machine and common to all its processes."""

    def __init__(self, names: Sequence[str], folder: Path | None = None) -> None:
        self._names = tuple(names)
        self._folder = folder or locks()

    def lacks(self, count: int) -> str:
        """Return a message if fewer than `count` GPUs are available, else ""."""
        seen = len(self._names)
        return "" if count <= seen else f"needs {count} GPU{'s' * (count > 1)}; {seen} may be used ({VISIBLE})"

    @contextlib.contextmanager
    def take(self, count: int) -> Iterator[tuple[str, ...]]:
        """Hold `count` GPUs for the length of the context; wait without a limit until they are free.

        First come, first served: a case that needs one GPU does not overtake one that waits for eight. Raises
        MatrixError if the pool has fewer.
        """
        if lack := self.lacks(count):
            raise MatrixError("not enough GPUs", got=lack)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        held: list[str] = []
        with contextlib.ExitStack() as locks:
            with self._open("gate") as gate:
                fcntl.flock(gate, fcntl.LOCK_EX)
                while len(held) < count:
                    others = [name for name in self._names if name not in held]
                    # No other process collects GPUs meanwhile: the awaited GPU becomes free for this one.
                    name, lock = next(filter(None, map(self._try, others)), None) or self._wait(others[0])
                    held.append(name)
                    locks.enter_context(lock)
            yield tuple(held)

    def _try(self, name: str) -> tuple[str, IO[str]] | None:
        file = self._open(name)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return name, file

    def _wait(self, name: str) -> tuple[str, IO[str]]:
        file = self._open(name)
        fcntl.flock(file, fcntl.LOCK_EX)
        return name, file

    def _open(self, name: str) -> IO[str]:
        return (self._folder / name.replace("/", "-")).open("a")


class ReservingRunner:
    """Runs jobs on GPUs of a pool; each job sees only its own GPUs."""

    def __init__(self, runs: JobRunner, pool: Pool, count: int) -> None:
        self._runs, self._pool, self._count = runs, pool, count

    def run(self, job: RankJob) -> Outcome:
        """Wait for the GPUs, then run the job; its deadline starts after the wait."""
        with self._pool.take(self._count) as names:
            return self._runs.run(replace(job, env={**job.env, VISIBLE: ",".join(names)}))
