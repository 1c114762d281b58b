"""The decision over measured differences."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from matrix.kit.parity.factors import QUANTITIES, TOLERANCE, Difference, compare

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
