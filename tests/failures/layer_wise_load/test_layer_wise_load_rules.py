"""The rules of the entry in cells in which it was run, or whose sources were read."""

from __future__ import annotations

import pytest

from matrix.ground.catalog.failure import Expectation
from matrix.ground.catalog.loading import load
from matrix.ground.catalog.stack import MCORE

CATALOG = load()
BUILD = "0.20.0rc0+a48a0b7"


@pytest.mark.parametrize(
    ("core", "case", "expectation"),
    [
        (BUILD, "layer-wise", Expectation.BROKEN),
        (BUILD, "gathered", Expectation.WORKS),
        (BUILD, "distributed", Expectation.WORKS),
        ("0.19.2", "layer-wise", Expectation.WORKS),
        ("0.18.0", "layer-wise", Expectation.WORKS),
        ("0.17.1", "layer-wise", Expectation.UNKNOWN),
    ],
)
def test_the_rules_match_the_measurements(core: str, case: str, expectation: Expectation) -> None:
    stack = CATALOG.cell("torch-2.15.0", {MCORE: core}).stack
    assert expectation is CATALOG.failure("layer-wise-load").expectation(stack, case)
