"""The rules of the entry in cells in which it was run, or whose sources were read."""

from __future__ import annotations

import pytest

from matrix.ground.catalog.failure import Expectation
from matrix.ground.catalog.loading import load
from matrix.ground.catalog.stack import MCORE

CATALOG = load()


@pytest.mark.parametrize(
    ("base", "core", "expectation"),
    [
        ("torch-2.13.0", "0.9.0", Expectation.BROKEN),
        ("torch-2.13.0", "0.12.3", Expectation.BROKEN),
        ("torch-2.7.1", "0.12.3", Expectation.WORKS),
        ("torch-2.13.0", "0.13.1", Expectation.WORKS),
    ],
)
def test_the_rules_match_the_measurements(base: str, core: str, expectation: Expectation) -> None:
    cell = CATALOG.cell(base, {MCORE: core})
    assert expectation is CATALOG.failure("dcp-write-item").expectation(cell.stack)
