"""The silent relative of TransformerEngine#985: init_process_group("mpi") without mpirun."""

from __future__ import annotations

import pytest

from matrix.execution.reproduction import Reproduction


@pytest.mark.failure("mpi-world-of-one")
def test_world(reproduction: Reproduction) -> None:
    """The world that torch.distributed has on the mpi backend is the one that the launcher started."""
    reproduction.run("tests.failures.tp_overlap:world_of_mpi")
