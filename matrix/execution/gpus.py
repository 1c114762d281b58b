"""The GPUs of a machine, shared by the processes that run cases on it (pytest-xdist's workers, several runs).

A lock file for each GPU, held by flock(2): the system frees it when its holder dies, however that happens. A process
gets all GPUs that a case needs, or waits; who waits holds the gate, so no two processes ever wait for each other.
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
    """Return the names of the GPUs that this process may use: what a scheduler gave it, or all `count` of the host."""
    given = environ.get(VISIBLE)
    return tuple(map(str, range(count))) if given is None else tuple(name for name in given.split(",") if name)


def locks(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the locks on this machine: $MEGATRIX_GPU_LOCKS, which a container is told, or our own."""
    told = environ.get(LOCKS)
    return Path(told) if told else Path(tempfile.gettempdir()) / f"megatrix-gpus-{os.getuid()}"


def of_job(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs that Slurm gave this job, by the names that the node has for them; none outside of one.

    CUDA_VISIBLE_DEVICES counts them from 0 where Slurm hides the others (ConstrainDevices).
    """
    return tuple(name for name in environ.get("SLURM_JOB_GPUS", "").split(",") if name)


class Pool:
    """GPUs by name. `folder` holds the locks; it must be the machine's own, and the same for all who share."""

    def __init__(self, names: Sequence[str], folder: Path | None = None) -> None:
        self._names = tuple(names)
        self._folder = folder or locks()

    def lacks(self, count: int) -> str:
        """Return what is missing to `count` GPUs, "" for nothing."""
        seen = len(self._names)
        return "" if count <= seen else f"needs {count} GPU{'s' * (count > 1)}; {seen} may be used here ({VISIBLE})"

    @contextlib.contextmanager
    def take(self, count: int) -> Iterator[tuple[str, ...]]:
        """Hold `count` GPUs for as long as the context lasts; wait for them as long as it takes.

        First come, first served: a case that needs one GPU does not overtake one that waits for eight. Raises
        MatrixError when there are not that many.
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
                    # Nobody else collects meanwhile: one that is awaited comes free, and is ours.
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
    """Runs jobs on GPUs of a pool: each sees those alone that it was given."""

    def __init__(self, runs: JobRunner, pool: Pool, count: int) -> None:
        self._runs, self._pool, self._count = runs, pool, count

    def run(self, job: RankJob) -> Outcome:
        """Wait for the GPUs, then run the job; its deadline counts from then."""
        with self._pool.take(self._count) as names:
            return self._runs.run(replace(job, env={**job.env, VISIBLE: ",".join(names)}))
