"""The rules of the entry in cells in which it was run, or whose sources were read."""

from __future__ import annotations

import pytest

from matrix.ground.catalog.failure import Expectation
from matrix.ground.catalog.loading import load
from matrix.ground.catalog.stack import TE

CATALOG = load()


@pytest.mark.parametrize(
    ("te", "case", "expectation"),
    [
        ("2.4.0", "two-libraries", Expectation.BROKEN),
        ("2.4.0", "one-library", Expectation.WORKS),
        ("2.9.0", "built", Expectation.BROKEN),
        ("2.19.0", "other-version", Expectation.BROKEN),
        ("2.19.0", "matching", Expectation.WORKS),
    ],
)
def test_the_rules_match_the_measurements(te: str, case: str, expectation: Expectation) -> None:
    stack = CATALOG.cell("torch-2.13.0", {TE: te}).stack
    assert expectation is CATALOG.failure("te-mixed-installation").expectation(stack, case)
