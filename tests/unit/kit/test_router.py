"""The verdict on a router's gradient."""

from __future__ import annotations

import pytest

from matrix.kit.router import UnknownRatio, judge


class Halved(AssertionError):
    """The failure of the test."""


def test_the_ratio_of_the_formula_is_returned() -> None:
    assert judge(1.00005, 0.5, Halved) == 1.00005


@pytest.mark.parametrize("factor", [0.5, 0.50004])
def test_the_ratio_of_the_failure_raises_it(factor: float) -> None:
    with pytest.raises(Halved, match=r"0\.5000\d\d times that of the formula"):
        judge(factor, 0.5, Halved)


@pytest.mark.parametrize("factor", [0.25, 2.0, -1.0, 0.501, float("nan")])
def test_another_ratio_is_another_failure(factor: float) -> None:
    with pytest.raises(UnknownRatio):
        judge(factor, 0.5, Halved)


def test_a_factor_of_two_is_no_half() -> None:
    with pytest.raises(Halved):
        judge(1.99999, 2, Halved)
