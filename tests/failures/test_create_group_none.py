"""create_group() of megatron-core >= 0.15 for all ranks, which userbuffers want with Transformer Engine < 1.9."""

from __future__ import annotations

import pytest

from matrix.execution.reproduction import Reproduction


@pytest.mark.failure("create-group-none")
def test_start(reproduction: Reproduction) -> None:
    """Userbuffers start under mpirun, where the mpi group can be made: what comes next is reached."""
    reproduction.run("tests.failures.tp_overlap:through_megatron", bootstrap="gloo", parameter_checks=False)
