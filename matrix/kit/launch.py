"""How the processes of a job are started, read from the environment of one of them, and the MPI world they get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

# The variables that decide; no others are read or kept, since an environment holds secrets.
VARIABLES: Final = (
    "WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
    "TORCHELASTIC_RUN_ID",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "PMIX_RANK",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_NTASKS",
)


class Launcher(str, Enum):
    """What starts the processes."""

    TORCHRUN = "torchrun"
    MPIRUN = "mpirun"
    SRUN = "srun"
    NONE = "no launcher"


@dataclass(frozen=True)
class World:
    """The processes of a job: how many there are, and how many MPI_COMM_WORLD holds in each. None is not known."""

    launcher: Launcher
    size: int | None
    mpi: int | None

    @property
    def whole(self) -> bool | None:
        """Return whether the MPI world is as large as the job."""
        return None if self.size is None or self.mpi is None else self.size == self.mpi


UNKNOWN: Final = World(Launcher.NONE, None, None)


def environment_of(launcher: Launcher, size: int) -> dict[str, str]:
    """Return what a launcher sets for its processes, as far as VARIABLES name it."""
    text = str(size)
    return {
        Launcher.TORCHRUN: {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": text},
        Launcher.MPIRUN: {"OMPI_COMM_WORLD_SIZE": text, "WORLD_SIZE": text},
        Launcher.SRUN: {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": text, "WORLD_SIZE": text},
        Launcher.NONE: {"WORLD_SIZE": text},
    }[launcher]


def world_of(environ: Mapping[str, str]) -> World:
    """Return the world of a process that has this environment.

    MPI takes its world from its own launcher's variables. Without them MPI_Init makes a world of the one process.
    """
    size = _count(environ, "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
    tasks = _count(environ, "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
    if tasks is None and "PMIX_RANK" in environ:
        tasks = _count(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")  # PMIx gives the size to MPI alone
        return World(Launcher.SRUN if "SLURM_PROCID" in environ else Launcher.MPIRUN, size, tasks)
    if "TORCHELASTIC_RUN_ID" in environ:
        return World(Launcher.TORCHRUN, size, tasks or 1)
    if tasks is not None:
        return World(Launcher.MPIRUN if "OMPI_COMM_WORLD_SIZE" in environ else Launcher.SRUN, size, tasks)
    if "SLURM_PROCID" in environ:
        return World(Launcher.SRUN, size, None)  # --mpi=pmix and pmi2 bring a world; no variable shows which it was
    return World(Launcher.NONE, size, 1)


def _count(environ: Mapping[str, str], *names: str) -> int | None:
    """Return the first of the variables that is a number."""
    return next((int(environ[name]) for name in names if environ.get(name, "").isdecimal()), None)
