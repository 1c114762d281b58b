"""Megatron-LM#1003: the DCP save assertion. TP alone can't tell half a fix from a whole one, so PP=2 is there too."""

from __future__ import annotations

import pytest

from matrix.execution.reproduction import Reproduction

LAYOUTS = {
    "tp2": {"tensor_parallel": 2, "pipeline_parallel": 1},
    "pp2": {"tensor_parallel": 1, "pipeline_parallel": 2},
    "world1": {"tensor_parallel": 1, "pipeline_parallel": 1},
}


@pytest.mark.failure("dcp-assertion")
def test_save_and_load(reproduction: Reproduction) -> None:
    """A checkpoint that was saved loads back bit for bit, in every layout."""
    layout = LAYOUTS[reproduction.case]
    reproduction.run("tests.failures.dcp_assertion:save_and_load", **layout, stand_ins=reproduction.stand_ins)


@pytest.mark.failure("dcp-assertion")
def test_train_loop(reproduction: Reproduction) -> None:
    """Upstream's own loop, with its dataset, its loader and its schedule, saves and loads."""
    reproduction.run("tests.failures.train_loop:train_save_load", stand_ins=reproduction.stand_ins)
