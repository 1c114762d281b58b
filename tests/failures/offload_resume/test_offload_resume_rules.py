"""The rules of the entry in cells in which it was run, or whose sources were read."""

from __future__ import annotations

import pytest

from matrix.ground.catalog.failure import Expectation
from matrix.ground.catalog.loading import load
from matrix.ground.catalog.stack import MCORE, TE

CATALOG = load()


@pytest.mark.parametrize(
    ("core", "case", "expectation"),
    [
        ("0.12.3", "dp-zero", Expectation.BROKEN),
        ("0.15.3", "dp-reshardable", Expectation.BROKEN),
        ("0.15.3", "fully-reshardable", Expectation.WORKS),
        ("0.19.2", "dp-reshardable", Expectation.BROKEN),
        ("0.19.2", "float32", Expectation.BROKEN),
        ("0.19.2", "fully-reshardable", Expectation.WORKS),
    ],
)
def test_the_rules_match_the_measurements(core: str, case: str, expectation: Expectation) -> None:
    stack = CATALOG.cell("torch-2.13.0", {MCORE: core, TE: "2.14.1"}).stack
    assert expectation is CATALOG.failure("offload-resume").expectation(stack, case)
