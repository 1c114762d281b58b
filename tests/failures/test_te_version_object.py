"""megatron-core 0.19 is imported beside a Transformer Engine whose __version__ is no string."""

from __future__ import annotations

import pytest

from matrix.execution.reproduction import Reproduction


@pytest.mark.failure("te-version-object")
def test_import(reproduction: Reproduction) -> None:
    """megatron.core can be imported."""
    reproduction.run("tests.failures.tp_overlap:import_core")
