"""The MPI world of a launcher, and its effect on a group of all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.ground.catalog.folders import load_module
from matrix.kit.launch import Launcher, World
from matrix.kit.preflight import Status

mpi_world = load_module(Path(__file__).parent, "launch").mpi_world
SMALL = World(Launcher.TORCHRUN, 8, 1)


@pytest.mark.parametrize(
    ("world", "status"),
    [
        (World(Launcher.MPIRUN, 8, 8), Status.YES),
        (SMALL, Status.NO),
        (World(Launcher.TORCHRUN, 1, 1), Status.YES),
        (World(Launcher.NONE, None, 1), Status.UNKNOWN),
        (World(Launcher.SRUN, 8, None), Status.UNKNOWN),
    ],
)
def test_a_world_is_whole_too_small_or_unknown(world: World, status: Status) -> None:
    assert status is mpi_world(world).status


def test_a_silent_failure_is_noted_where_nothing_breaks() -> None:
    """init_process_group("mpi") without mpirun returns rank 0 in a world of one process."""
    found = mpi_world(SMALL, used=False)
    assert found.error is None
    assert "rank 0 of 1" in found.warns
    assert mpi_world(World(Launcher.MPIRUN, 8, 8)).warns == ""


def test_it_breaks_only_where_the_group_is_made() -> None:
    error = mpi_world(SMALL, used=True, why="it is asked for").error
    assert error.type == "MpiWorldTooSmall"
    assert error.message == "it is asked for; MPI_COMM_WORLD has 1 of 8 processes (torchrun)"
    assert str(error).startswith("SIGSEGV")
    assert [mpi_world(SMALL, used=used).error for used in (False, None)] == [None, None]
