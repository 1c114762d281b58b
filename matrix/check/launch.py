"""How the processes of a job are started, read from the environment of one of them; and what MPI makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from matrix.check.answer import Answer, Word, known

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


CRASH: Final = "SIGSEGV in createProcessGroupMPI, or MPI_ERR_RANK and exit code 6"
SILENT: Final = 'init_process_group("mpi") would return in every process with rank 0 of 1, and reduce nothing'


class Launcher(str, Enum):
    """What starts the processes."""

    TORCHRUN = "torchrun"
    MPIRUN = "mpirun"
    SRUN = "srun"
    NONE = "no launcher"


@dataclass(frozen=True)
class World:
    """The processes of a job: how many there are, and how many MPI_COMM_WORLD holds in each. None: can't be told."""

    launcher: Launcher
    size: int | None
    mpi: int | None

    @property
    def whole(self) -> bool | None:
        """Say whether the MPI world is as large as the job."""
        return None if self.size is None or self.mpi is None else self.size == self.mpi


def environment_of(launcher: Launcher, size: int) -> dict[str, str]:
    """Return what a launcher sets for its processes, as far as VARIABLES name it."""
    told = str(size)
    return {
        Launcher.TORCHRUN: {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": told},
        Launcher.MPIRUN: {"OMPI_COMM_WORLD_SIZE": told, "WORLD_SIZE": told},
        Launcher.SRUN: {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": told, "WORLD_SIZE": told},
        Launcher.NONE: {"WORLD_SIZE": told},
    }[launcher]


def world_of(environ: Mapping[str, str]) -> World:
    """Return the world of a process that has this environment.

    MPI learns its world from its own launcher's variables. Without them MPI_Init makes a world of the one process.
    """
    size = _count(environ, "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
    tasks = _count(environ, "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
    if tasks is None and "PMIX_RANK" in environ:
        tasks = _count(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")  # PMIx itself tells the size to MPI alone
        return World(Launcher.SRUN if "SLURM_PROCID" in environ else Launcher.MPIRUN, size, tasks)
    if "TORCHELASTIC_RUN_ID" in environ:
        return World(Launcher.TORCHRUN, size, tasks or 1)
    if tasks is not None:
        return World(Launcher.MPIRUN if "OMPI_COMM_WORLD_SIZE" in environ else Launcher.SRUN, size, tasks)
    if "SLURM_PROCID" in environ:
        return World(
            Launcher.SRUN, size, None
        )  # --mpi=pmix and pmi2 bring a world, and Slurm does not say which it was
    return World(Launcher.NONE, size, 1)


def _count(environ: Mapping[str, str], *names: str) -> int | None:
    """Return the first of the variables that is a number."""
    return next((int(environ[name]) for name in names if environ.get(name, "").isdecimal()), None)


def mpi_world(world: World, *, used: bool | None = None) -> Answer:
    """Say whether the MPI world is as large as the job; `used`: an mpi group of all ranks will be made (None: maybe).

    Where it is too small, init_process_group("mpi") fails silently: each process is rank 0 of 1.
    """
    if world.size is None:
        reason = "no launcher's variables here, so the job's size is not known"
    elif world.mpi is None:
        reason = f"{world.launcher.value} brings MPI its world only with --mpi=pmix or pmi2, which was not seen"
    else:
        reason = f"MPI_COMM_WORLD has {world.mpi} of {world.size} processes ({world.launcher.value})"
    question = "the MPI world is as large as the job"
    if world.whole is not False:
        return Answer(question, known(world.whole), reason)
    if used:
        return Answer(question, Word.NO, reason, breaks=CRASH, failure="tp-overlap", warns=SILENT)
    return Answer(question, Word.NO, reason, warns=SILENT if used is False else f"{CRASH}, if an mpi group is made")
