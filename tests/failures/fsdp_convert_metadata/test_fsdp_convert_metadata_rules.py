"""The rules of the entry in cells in which it was run, or whose sources were read."""

from __future__ import annotations

import pytest

from matrix.ground.catalog.failure import Expectation
from matrix.ground.catalog.loading import load
from matrix.ground.catalog.stack import MCORE

CATALOG = load()


@pytest.mark.parametrize(
    ("mcore", "case", "expectation"),
    [
        ("0.14.0", "without", Expectation.BROKEN),
        ("0.16.1", "without", Expectation.BROKEN),
        ("0.16.1", "with-mcore-data", Expectation.WORKS),
        ("0.17.1", "with-mcore-data", Expectation.BROKEN),
        ("0.18.2", "without", Expectation.WORKS),
    ],
)
def test_the_rules_match_the_measurements(mcore: str, case: str, expectation: Expectation) -> None:
    stack = CATALOG.cell("torch-2.15.0", {MCORE: mcore}).stack
    assert expectation is CATALOG.failure("fsdp-convert-metadata").expectation(stack, case)
