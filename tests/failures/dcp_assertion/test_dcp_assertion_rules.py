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
        ("torch-2.4.0", "0.8.0", Expectation.BROKEN),
        ("torch-2.3.1", "0.8.0", Expectation.WORKS),
        ("torch-2.4.0", "0.6.0", Expectation.WORKS),
        ("torch-2.4.0", "0.9.0", Expectation.WORKS),
        ("ngc-24.07", "0.8.0", Expectation.BROKEN),
        ("ngc-24.06", "0.8.0", Expectation.UNKNOWN),
    ],
)
def test_the_rules_match_the_measurements(base: str, core: str, expectation: Expectation) -> None:
    cell = CATALOG.cell(base, {MCORE: core})
    assert expectation is CATALOG.failure("dcp-assertion").expectation(cell.stack, "tp2")


def test_another_format_breaks_megatron_core_0_6() -> None:
    """The cases save with its default, zarr."""
    cell = CATALOG.cell("torch-2.4.0", {MCORE: "0.6.0"})
    assert CATALOG.failure("dcp-assertion").expectation(cell.stack) is Expectation.BROKEN
