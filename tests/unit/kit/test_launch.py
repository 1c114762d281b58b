"""The MPI world of a process is read from its environment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.kit.launch import VARIABLES, Launcher, World, environment_of, world_of

ELASTIC = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "8"}


@pytest.mark.parametrize(
    ("environ", "world"),
    [
        ({}, World(Launcher.NONE, None, 1)),
        ({"WORLD_SIZE": "2", "RANK": "0"}, World(Launcher.NONE, 2, 1)),
        (ELASTIC, World(Launcher.TORCHRUN, 8, 1)),
        ({"OMPI_COMM_WORLD_SIZE": "8"}, World(Launcher.MPIRUN, 8, 8)),
        ({"OMPI_COMM_WORLD_SIZE": "8", "WORLD_SIZE": "8"}, World(Launcher.MPIRUN, 8, 8)),
        ({"PMI_SIZE": "8", "SLURM_PROCID": "0"}, World(Launcher.SRUN, 8, 8)),
        ({"PMIX_RANK": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "8"}, World(Launcher.SRUN, 8, 8)),
        ({"PMIX_RANK": "0", "WORLD_SIZE": "8"}, World(Launcher.MPIRUN, 8, None)),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "8"}, World(Launcher.SRUN, 8, None)),
        # torchrun, one for each node, under mpirun or srun
        ({**ELASTIC, "OMPI_COMM_WORLD_SIZE": "2"}, World(Launcher.TORCHRUN, 8, 2)),
        ({**ELASTIC, "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, World(Launcher.TORCHRUN, 8, 1)),
        ({"WORLD_SIZE": "two", "OMPI_COMM_WORLD_SIZE": "2"}, World(Launcher.MPIRUN, 2, 2)),
    ],
)  # fmt: skip
def test_a_world_is_read_from_the_environment(environ: dict[str, str], world: World) -> None:
    assert world == world_of(environ)


@given(st.sampled_from(list(Launcher)), st.integers(1, 4096))
def test_world_of_reads_environment_of(launcher: Launcher, size: int) -> None:
    environ = environment_of(launcher, size)
    assert (launcher, size) == (world_of(environ).launcher, world_of(environ).size)
    assert set(environ) <= set(VARIABLES)
