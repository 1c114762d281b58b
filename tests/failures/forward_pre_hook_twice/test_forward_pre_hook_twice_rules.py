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
        ("0.12.3", "twice", Expectation.BROKEN),
        ("0.19.2", "twice", Expectation.BROKEN),
        ("0.19.2", "once", Expectation.WORKS),
        ("0.19.2", "asks", Expectation.WORKS),
        ("0.8.0", "twice", Expectation.UNKNOWN),
    ],
)
def test_the_rules_match_the_measurements(core: str, case: str, expectation: Expectation) -> None:
    stack = CATALOG.cell("torch-2.13.0", {MCORE: core}).stack
    assert expectation is CATALOG.failure("forward-pre-hook-twice").expectation(stack, case)
