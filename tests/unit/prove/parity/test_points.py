"""Tests of matrix.prove.parity.points."""

from __future__ import annotations

from itertools import combinations, islice
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix.kit.parity.factors import MOST_RANKS, Point
from matrix.prove.parity.points import Cover, Space, contains, denser

CORES = ("0.5.0", "0.12.0", "0.16.1", "0.19.2")


def taken(cover: Cover, number: int) -> list[Point]:
    points = []
    for point in islice(cover, number):
        cover.judged(point)
        points.append(point)
    return points


@pytest.mark.parametrize("core", CORES)
def test_points_are_possible_and_of_the_release(core: str) -> None:
    points = taken(Cover(Space(core), 1), 15)
    assert points[0] == Point()
    assert all(not point.problems() and point.supported(core) and point.ranks <= MOST_RANKS for point in points)


def test_points_depend_on_the_seed_alone() -> None:
    first, again, other = (taken(Cover(Space("0.19.2"), seed), 12) for seed in (7, 7, 8))
    assert first == again != other


def test_nearly_all_pairs_are_covered_by_few_points() -> None:
    cover = Cover(Space("0.16.1"), 1)
    before = len(cover.uncovered)
    points = taken(cover, 80)
    pairs = {frozenset(pair) for point in points for pair in combinations(point.items(), 2)}
    assert len(cover.uncovered) < before * 0.06
    assert not cover.uncovered & pairs


def test_cover_ends() -> None:
    cover = Cover(Space("0.4.0"), 1)
    assert len(taken(cover, 1000)) < 1000
    assert not cover.uncovered


def test_avoided_cause_is_in_no_later_point() -> None:
    space = Space("0.19.2")
    cover, cause = Cover(space, 3), Point.parse("experts=4 dp=2")
    for number, point in enumerate(islice(cover, 40)):
        if number >= 10:
            assert not contains(point, cause)
        if number == 9:
            space.avoided.append(cause)
        cover.judged(point)


def test_a_larger_size_contains_a_smaller_one() -> None:
    assert contains(Point.parse("tp=4 bias=on"), Point.parse("tp=2"))
    assert not contains(Point.parse("tp=2"), Point.parse("tp=4"))
    assert not contains(Point.parse("attention=mla"), Point.parse("attention=gqa"))
    assert not contains(Point.parse("tp=2"), Point())


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_denser_points_keep_what_was_chosen(seed: int) -> None:
    point = Point.parse("experts=4 dp=2")
    dense = denser(Space("0.19.2"), point, 0.5, Random(seed))
    assert contains(dense, point)
    assert not dense.problems()


def test_repair_fails_where_the_fixed_factors_exclude_it() -> None:
    space = Space("0.19.2")
    assert space.repaired(Point.parse("tp=4 pp=4"), ("tp", "pp"), Random(1)) is None
    repaired = space.repaired(Point.parse("ep=2"), ("ep",), Random(1))
    assert repaired is not None
    assert repaired["experts"] == 4
