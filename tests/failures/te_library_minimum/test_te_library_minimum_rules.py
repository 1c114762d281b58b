"""The minimums of Transformer Engine beside the cuDNN of PyPI's torch."""

from __future__ import annotations

import pytest

from matrix.ground.catalog import loading
from matrix.ground.catalog.failure import Expectation
from matrix.ground.catalog.stack import Stack

FAILURE = loading.load().failure("te-library-minimum")


@pytest.mark.parametrize(
    ("te", "cudnn", "cuda", "sm", "expected", "certain"),
    [
        ("2.20.2", "9.10.2.21", "12.8", "9.0", Expectation.BROKEN, True),
        ("2.20.2", "9.19.0.56", "13.0", "9.0", Expectation.WORKS, False),
        ("2.19.0", "9.10.2.21", "12.8", "9.0", Expectation.WORKS, False),
        ("2.9.0", "9.1.0.70", "12.4", "9.0", Expectation.BROKEN, False),
        ("2.9.0", "9.5.1.17", "12.6", "10.0", Expectation.BROKEN, False),
        ("1.13.0", "8.9.2.26", "12.1", "9.0", Expectation.WORKS, False),
    ],
)
def test_libraries_below_the_minimum(
    te: str, cudnn: str, cuda: str, sm: str, expected: Expectation, *, certain: bool
) -> None:
    stack = Stack({"transformer-engine": te, "cudnn": cudnn, "cuda": cuda, "sm": sm})
    assert FAILURE.expectation(stack) is expected
    assert FAILURE.reach(stack, None).certain is certain
