"""The MPI world that a launcher provides: a group of all ranks needs one as large as the job."""

from __future__ import annotations

from typing import Final

from matrix.kit.launch import World
from matrix.kit.preflight import Answer, Error, Status, status_of

WORLD: Final = "the MPI world is as large as the job"
CRASH: Final = "SIGSEGV in createProcessGroupMPI, or MPI_ERR_RANK and exit code 6"
SILENT: Final = 'init_process_group("mpi") would return in every process with rank 0 of 1, and reduce nothing'


def mpi_world(world: World, *, used: bool | None = None, why: str = "") -> Answer:
    """Return whether the MPI world is as large as the job; `used`: an mpi group of all ranks will be made, for `why`.

    Where the world is too small, init_process_group("mpi") fails silently: each process is rank 0 of 1.
    """
    if world.size is None:
        reason = "no launcher's variables here, so the job's size is not known"
    elif world.mpi is None:
        reason = f"{world.launcher.value} brings MPI its world only with --mpi=pmix or pmi2, which was not seen"
    else:
        reason = f"MPI_COMM_WORLD has {world.mpi} of {world.size} processes ({world.launcher.value})"
    if world.whole is not False:
        return Answer(WORLD, status_of(world.whole), reason)
    if used:
        return Answer(WORLD, Status.NO, reason, Error("MpiWorldTooSmall", f"{why}; {reason}", CRASH), SILENT)
    return Answer(WORLD, Status.NO, reason, warns=SILENT if used is False else f"{CRASH}, if an mpi group is made")
