"""Megatron-LM#1041, #1018: get_cpu_offload_context() is called with an argument too many."""

from __future__ import annotations

import pytest

from matrix.reproduction import Reproduction
from tests.failures.te_contract import outcome_of


@pytest.mark.failure("cpu-offload-args")
def test_build_model(reproduction: Reproduction) -> None:
    """A model can be built: the real adapter calls the real Transformer Engine, offloading being off."""
    reproduction.run("tests.failures.cpu_offload_args:build_model", stand_ins=reproduction.stand_ins)


@pytest.mark.failure("cpu-offload-args")
def test_contract(reproduction: Reproduction) -> None:
    """Megatron's call fits the signature that it meets under its own version guard."""
    reproduction.read(lambda: outcome_of(reproduction.planned.cell, "get_cpu_offload_context"))
