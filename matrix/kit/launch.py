"""The launcher of a job and its MPI world, read from the environment of one of its processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

# The only variables that are read or kept: an environment holds secrets.
VARIABLES: Final = (
    *("WORLD_SIZE", "RANK", "LOCAL_RANK", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"),
    *("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
)


class Launcher(str, Enum):
    """The program that starts the processes."""

    TORCHRUN = "torchrun"
    MPIRUN = "mpirun"
    SRUN = "srun"
    NONE = "no launcher"


@dataclass(frozen=True)
class World:
    """The number of processes of a job (`size`) and of its MPI_COMM_WORLD (`mpi`). None is unknown."""

    launcher: Launcher
    size: int | None
    mpi: int | None

    @property
    def whole(self) -> bool | None:
        """Return whether the MPI world is as large as the job."""
        return None if self.size is None or self.mpi is None else self.size == self.mpi


UNKNOWN: Final = World(Launcher.NONE, None, None)


def environment_of(launcher: Launcher, size: int) -> dict[str, str]:
    """Return those of VARIABLES that a launcher sets for its processes."""
    text = str(size)
    return {
        Launcher.TORCHRUN: {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": text},
        Launcher.MPIRUN: {"OMPI_COMM_WORLD_SIZE": text, "WORLD_SIZE": text},
        Launcher.SRUN: {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": text, "WORLD_SIZE": text},
        Launcher.NONE: {"WORLD_SIZE": text},
    }[launcher]


def world_of(environ: Mapping[str, str]) -> World:
    """Return the world of a process with this environment.

    MPI reads its world from the variables of its own launcher. Without them MPI_Init creates a world of one process.
    """
    size = _count(environ, "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
    tasks = _count(environ, "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
    if tasks is None and "PMIX_RANK" in environ:
        tasks = _count(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")  # PMIx passes the size only to MPI
        return World(Launcher.SRUN if "SLURM_PROCID" in environ else Launcher.MPIRUN, size, tasks)
    if "TORCHELASTIC_RUN_ID" in environ:
        return World(Launcher.TORCHRUN, size, tasks or 1)
    if tasks is not None:
        return World(Launcher.MPIRUN if "OMPI_COMM_WORLD_SIZE" in environ else Launcher.SRUN, size, tasks)
    if "SLURM_PROCID" in environ:
        return World(Launcher.SRUN, size, None)  # --mpi=pmix and pmi2 provide a world; no variable shows which was used
    return World(Launcher.NONE, size, 1)


def _count(environ: Mapping[str, str], *names: str) -> int | None:
    """Return the value of the first of these variables that is a number, None if none is."""
    return next((int(environ[name]) for name in names if environ.get(name, "").isdecimal()), None)
