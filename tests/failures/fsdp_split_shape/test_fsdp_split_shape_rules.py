"""The rules of the entry in cells in which it was run, or whose sources were read."""

from __future__ import annotations

import pytest

from matrix.ground.catalog.failure import Expectation
from matrix.ground.catalog.loading import load
from matrix.ground.catalog.stack import MCORE

CATALOG = load()


@pytest.mark.parametrize(
    ("base", "mcore", "case", "expectation"),
    [
        ("torch-2.7.1", "0.14.0", "layers", Expectation.WORKS),
        ("torch-2.10.0", "0.14.0", "layers", Expectation.BROKEN),
        ("torch-2.11.0", "0.14.0", "layers", Expectation.BROKEN),
        ("torch-2.11.0", "0.14.0", "native", Expectation.WORKS),
        ("torch-2.15.0", "0.17.1", "layers", Expectation.BROKEN),
        ("torch-2.15.0", "0.18.2", "layers", Expectation.WORKS),
    ],
)
def test_the_rules_match_the_measurements(base: str, mcore: str, case: str, expectation: Expectation) -> None:
    stack = CATALOG.cell(base, {MCORE: mcore}).stack
    assert expectation is CATALOG.failure("fsdp-split-shape").expectation(stack, case)
