"""Covering arrays hold every pair of any allowed row, and no row that is not allowed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from matrix.prove.planning.night import pairwise
from tests.profiles import tries

KEYS = ("base", "mcore", "te")
Rows = set[tuple[str, str, str]]


def factors(bases: int, cores: int, engines: int, cases: int) -> Mapping[str, list[str]]:
    sizes = {"base": bases, "mcore": cores, "te": engines, "case": cases}
    return {name: [f"{name}-{number}" for number in range(size)] for name, size in sizes.items()}


def pairs(row: Mapping[str, Any]) -> Iterator[tuple[tuple[str, Any], tuple[str, Any]]]:
    return itertools.combinations(sorted(row.items()), 2)


@st.composite
def constrained(draw: st.DrawFn) -> tuple[Mapping[str, list[str]], Rows]:
    """Return factors and the allowed rows of the first three; every value has a row, as in night_cells."""
    given = factors(*(draw(st.integers(1, most)) for most in (4, 4, 3, 3)))
    product = list(itertools.product(given["base"], given["mcore"], given["te"]))
    rows = set(draw(st.lists(st.sampled_from(product), min_size=1, max_size=12)))
    used = {
        key: [value for value in given[key] if any(row[place] == value for row in rows)]
        for place, key in enumerate(KEYS)
    }
    return {**used, "case": given["case"]}, rows


@tries(60)
@given(constrained())
def test_allowed_rows_cover_every_feasible_pair(drawn: tuple[Mapping[str, list[str]], Rows]) -> None:
    given, rows = drawn
    made = pairwise(given, KEYS, lambda row: tuple(row[key] for key in KEYS) in rows)
    assert {tuple(row[key] for key in KEYS) for row in made} <= rows
    every = (dict(zip((*KEYS, "case"), (*row, case), strict=True)) for row in rows for case in given["case"])
    assert {pair for row in every for pair in pairs(row)} == {pair for row in made for pair in pairs(row)}


def test_rows_are_few_and_the_same_each_time() -> None:
    given = factors(4, 10, 3, 4)
    first, second = (pairwise(given, KEYS, lambda row: True) for _ in range(2))
    assert first == second
    assert 40 <= len(first) <= 60 < 480


def test_rows_follow_the_order_of_the_values() -> None:
    given = factors(3, 3, 1, 2)
    rows = pairwise(given, KEYS, lambda row: True)
    assert sorted(rows, key=lambda row: [given[name].index(row[name]) for name in given]) == rows
