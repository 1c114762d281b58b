"""The calls to one function, read in both APIs."""

from __future__ import annotations

import pytest

from matrix.catalog.failure import ContractCall
from matrix.catalog.schema import Pattern
from matrix.contract.calling import findings, outcome_of
from matrix.verdicts.outcome import OutcomeKind


@pytest.mark.parametrize(
    ("caller", "exceptions"),
    [
        (None, ["AttributeError", "ImportError"]),
        ("record_graph_capture$", ["ImportError"]),
        ("_get_fp8_autocast_for_quant_recipe$", ["AttributeError"]),
        ("nobody", []),
    ],
)
def test_caller_limits_the_call(caller: str | None, exceptions: list[str]) -> None:
    """Two functions of megatron-core 0.16.1 use a class that Transformer Engine 2.7 lacks, in different ways."""
    call = ContractCall(Pattern(r"\.NVFP4BlockScaling$"), caller=Pattern(caller) if caller else None)
    outcome = outcome_of(call, findings("0.16.1", "2.7.0"))

    assert sorted({one.type for one in outcome.chain}) == exceptions
    assert outcome.kind is (OutcomeKind.RAISED if exceptions else OutcomeKind.PASSED)
