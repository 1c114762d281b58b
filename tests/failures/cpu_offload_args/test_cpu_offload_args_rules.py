"""The rules of the entry in cells in which it was run, or whose sources were read."""

from __future__ import annotations

import pytest

from matrix.ground.catalog.failure import Expectation
from matrix.ground.catalog.loading import load
from matrix.ground.catalog.stack import MCORE, TE

CATALOG = load()


@pytest.mark.parametrize(
    ("te", "expectation"),
    [
        ("1.9", Expectation.WORKS),
    ],
)
def test_the_rules_match_the_measurements(te: str, expectation: Expectation) -> None:
    cell = CATALOG.cell("torch-2.4.0", {MCORE: "0.8.0", TE: te})
    assert expectation is CATALOG.failure("cpu-offload-args").expectation(cell.stack)
