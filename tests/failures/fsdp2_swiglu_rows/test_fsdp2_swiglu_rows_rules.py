"""The rules of the entry in cells in which it was run, or whose sources were read."""

from __future__ import annotations

import pytest

from matrix.ground.catalog.failure import Expectation
from matrix.ground.catalog.loading import load
from matrix.ground.catalog.stack import MCORE

CATALOG = load()


@pytest.mark.parametrize(
    ("core", "case", "expectation"),
    [
        ("0.13.0", "load", Expectation.BROKEN),
        ("0.18.2", "save", Expectation.BROKEN),
        ("0.18.2", "same-layout", Expectation.WORKS),
        ("0.18.2", "ungated", Expectation.WORKS),
        ("0.19.0", "load", Expectation.WORKS),
        ("0.19.2", "save", Expectation.WORKS),
    ],
)
def test_the_rules_match_the_measurements(core: str, case: str, expectation: Expectation) -> None:
    stack = CATALOG.cell("torch-2.15.0", {MCORE: core}).stack
    assert expectation is CATALOG.failure("fsdp2-swiglu-rows").expectation(stack, case)
