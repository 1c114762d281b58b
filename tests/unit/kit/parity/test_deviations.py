"""The decision over measured differences."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.kit.parity.factors import FACTOR, QUANTITIES, TOLERANCE, Difference, Tolerance, compare

DIFFERENCES = st.builds(
    Difference,
    quantity=st.sampled_from(QUANTITIES),
    parameter=st.sampled_from(["", "a", "b"]),
    step=st.integers(0, 2),
    rank=st.integers(0, 3),
    difference=st.floats(0, 1e3),
    scale=st.floats(0, 1e3),
)


def difference(
    quantity: str = "gradient", size: float = 1.0, step: int = 0, rank: int = 0, name: str = "w"
) -> Difference:
    return Difference(quantity, name, step, rank, size, 1.0, 2.0)


@given(st.lists(DIFFERENCES))
def test_within_tolerance_nothing_deviates(differences: list[Difference]) -> None:
    small = [row for row in differences if row.size <= TOLERANCE]
    assert compare(small) == ()
    assert bool(compare(differences)) == (len(small) < len(differences))


@given(st.lists(DIFFERENCES))
def test_order_does_not_depend_on_the_input(differences: list[Difference]) -> None:
    rows = compare(differences)
    assert [row.quantity for row in rows] == sorted((row.quantity for row in rows), key=QUANTITIES.index)
    assert {row.step for row in rows} <= {min((one.step for one in differences if one.size > TOLERANCE), default=0)}
    again = compare(reversed(differences))
    assert [(row.quantity, row.parameter, row.size, row.ranks) for row in rows] == [
        (row.quantity, row.parameter, row.size, row.ranks) for row in again
    ]


def test_equal_sizes_are_in_the_order_of_names() -> None:
    """The last digits differ from processor to processor: gradients twice as large deviate by 1, or a bit less."""
    above, below = math.nextafter(1.0, 2.0), math.nextafter(1.0, 0.0)
    rows = compare([difference(size=above, name="b"), difference(size=below, name="a"), difference(size=1.1, name="c")])
    assert [row.parameter for row in rows] == ["c", "a", "b"]


def test_replicas_of_a_deviation_are_merged() -> None:
    (row,) = compare([difference(size=0.5, rank=3), difference(size=0.7, rank=1), difference(size=0.0, rank=2)])
    assert (row.size, row.ranks) == (0.7, (1, 3))
    assert str(row) == "gradient of w deviates by 0.7, 2 times the expected, in step 0 on rank 1, 3"


def test_later_steps_follow_from_the_first() -> None:
    rows = compare([difference(step=1), difference("parameter", step=0), difference("norm", step=1, name="")])
    assert [(row.quantity, row.step) for row in rows] == [("parameter", 0)]


def test_not_a_number_deviates() -> None:
    (row,) = compare([difference(size=math.nan)])
    assert row.size == math.inf


def test_zero_is_compared_with_zero() -> None:
    assert compare([Difference("gradient", "w", 0, 0, 0.0, 0.0)]) == ()
    assert compare([Difference("gradient", "w", 0, 0, 1e-30, 0.0)])


@pytest.mark.parametrize(
    ("moved", "size", "allowed"),
    [
        ([], TOLERANCE, True),
        ([], 2 * TOLERANCE, False),
        ([0.01, 0.02], FACTOR * 0.02, True),
        ([0.01, 0.02], FACTOR * 0.021, False),
        ([0.0], TOLERANCE, True),
        ([math.nan], 0.1, True),
        ([math.nan], math.nan, False),
        ([0.01], math.inf, False),
    ],
)
def test_tolerance_is_a_multiple_of_the_spread(moved: list[float], size: float, allowed: bool) -> None:
    """A spread without an end allows every finite difference: such a quantity decides nothing."""
    tolerance = Tolerance.measured(TOLERANCE, [difference(size=row) for row in moved])
    assert tolerance.allows(difference(size=size)) is allowed


def test_spread_is_of_one_quantity_parameter_and_step() -> None:
    tolerance = Tolerance.measured(TOLERANCE, [difference(size=0.5)])
    others = [difference("loss", 0.5, name=""), difference(size=0.5, step=1), difference(size=0.5, name="v")]
    assert [tolerance.allows(row) for row in (difference(size=0.5, rank=3), *others)] == [True, False, False, False]


@given(st.lists(DIFFERENCES), st.lists(DIFFERENCES), DIFFERENCES)
def test_moved_references_and_further_ones_are_allowed(
    moved: list[Difference], further: list[Difference], row: Difference
) -> None:
    """Each further moved reference allows as much or more."""
    tolerance, wider = (Tolerance.measured(TOLERANCE, rows) for rows in (moved, moved + further))
    assert all(tolerance.allows(one) for one in moved if math.isfinite(one.size))
    assert wider.allows(row) or not tolerance.allows(row)
