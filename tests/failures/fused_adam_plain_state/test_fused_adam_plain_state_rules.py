"""The rules of the entry in cells in which it was run, or whose sources were read."""

from __future__ import annotations

import pytest

from matrix.ground.catalog.failure import Expectation
from matrix.ground.catalog.loading import load
from matrix.ground.catalog.stack import MCORE, TE

CATALOG = load()


@pytest.mark.parametrize(
    ("te", "case", "expectation"),
    [
        ("2.9.0", "fused-adam", Expectation.WORKS),
        ("2.10.0", "fused-adam", Expectation.BROKEN),
        ("2.11.0", "fused-adam", Expectation.BROKEN),
        ("2.11.0", "torch-adam", Expectation.WORKS),
        ("2.12.0", "fused-adam", Expectation.WORKS),
        ("2.14.0", "fused-adam", Expectation.WORKS),
        ("2.14.0+71bbefb", "fused-adam", Expectation.BROKEN),
    ],
)
def test_the_rules_match_the_measurements(te: str, case: str, expectation: Expectation) -> None:
    stack = CATALOG.cell("torch-2.15.0", {MCORE: "0.19.2", TE: te}).stack
    assert expectation is CATALOG.failure("fused-adam-plain-state").expectation(stack, case)
