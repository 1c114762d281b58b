"""The rules of the entry in cells in which it was run, or whose sources were read."""

from __future__ import annotations

import pytest

from matrix.ground.catalog.failure import Expectation
from matrix.ground.catalog.loading import load
from matrix.ground.catalog.stack import MCORE

CATALOG = load()


@pytest.mark.parametrize(
    ("bridge", "case", "expectation"),
    [
        ("0.5.1", "with-mask", Expectation.BROKEN),
        ("0.5.1", "without-mask", Expectation.WORKS),
        ("0.6.0", "with-mask", Expectation.WORKS),
    ],
)
def test_the_rules_match_the_measurements(bridge: str, case: str, expectation: Expectation) -> None:
    stack = CATALOG.cell("torch-2.15.0", {MCORE: "0.18.2", "megatron-bridge": bridge}).stack
    assert expectation is CATALOG.failure("bridge-packed-mask").expectation(stack, case)
