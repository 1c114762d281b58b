"""Megatron-LM#1041, #1018: get_cpu_offload_context() is called with an argument too many."""

from __future__ import annotations

import pytest

from matrix.execution.reproduction import Reproduction


@pytest.mark.failure("cpu-offload-args")
def test_build_model(reproduction: Reproduction) -> None:
    """A model can be built: the real adapter calls the real Transformer Engine, offloading being off."""
    reproduction.run("tests.failures.cpu_offload_args:build_model", stand_ins=reproduction.stand_ins)
