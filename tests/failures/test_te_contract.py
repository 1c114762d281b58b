"""Calls that Megatron-LM makes into Transformer Engine and that do not fit there; nothing of either is run."""

from __future__ import annotations

import pytest

from matrix.contract import reading
from matrix.contract.claim import CALLEES, outcome_of
from matrix.execution.reproduction import Reproduction


@pytest.mark.failure(*CALLEES)
def test_contract(reproduction: Reproduction) -> None:
    """Megatron's call fits what it meets under its own version guards."""
    cell, failure = reproduction.planned.cell, reproduction.failure.id
    reproduction.read(lambda: outcome_of(failure, reading.calls_of(cell.mcore), reading.surface_of(cell.te)))
