"""The order of commits: ancestors, parents, and commits that change nothing."""

from __future__ import annotations

import pytest

from matrix.prove.bisection.ancestry import Ancestry, places, unchanged

# 0 - 1 - 2 - - - 5
#      \         /
#       3 - 4 - -
FORK = [[], [0], [1], [1], [3], [2, 4]]


def ancestors(order: Ancestry) -> list[list[int]]:
    return [list(places(mask)) for mask in order.below]


def test_release_descends_from_all_before_it() -> None:
    assert ancestors(Ancestry.chain(3)) == [[0], [0, 1], [0, 1, 2]]
    assert Ancestry.of_parents([[], [0], [1]]) == Ancestry.chain(3)
    assert len(Ancestry.chain(3)) == 3


def test_commit_descends_from_all_its_parents() -> None:
    assert ancestors(Ancestry.of_parents(FORK)) == [
        [0],
        [0, 1],
        [0, 1, 2],
        [0, 1, 3],
        [0, 1, 3, 4],
        [0, 1, 2, 3, 4, 5],
    ]


@pytest.mark.parametrize(
    ("left_out", "expected"),
    [
        ([], [[], [0], [1], [1], [3], [4, 2]]),
        ([3], [[], [0], [1], [1], [3, 2]]),  # 4 takes its place and descends from 1
        ([1, 3], [[], [0], [0], [2, 1]]),
        ([2, 3, 4], [[], [0], [1]]),
    ],
)
def test_left_out_commits_connect_the_others(left_out: list[int], expected: list[list[int]]) -> None:
    order = Ancestry.of_parents(FORK, left_out)
    assert [order.parents(place) for place in range(len(order))] == expected


def test_ancestor_of_a_parent_is_no_parent() -> None:
    """2 names both 1 and 0 as parents."""
    assert Ancestry.of_parents([[], [0], [0, 1]]).parents(2) == [1]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("abcdef", {}),
        ("aabcde", {1: 0}),
        ("abbbcd", {2: 1, 3: 1}),  # both sides of the fork
        ("aabcdd", {1: 0}),  # the last commit is an end
        ("aaaaaa", {1: 0, 2: 1, 3: 1, 4: 3}),
        ("abacad", {}),  # equal to a commit that is no parent
    ],
)
def test_commit_like_a_parent_is_unchanged(content: str, expected: dict[int, int]) -> None:
    assert unchanged(FORK, content) == expected


def test_first_parent_of_equal_content_is_named() -> None:
    assert unchanged([[], [0], [0], [2, 1], [3]], "abbbc") == {3: 2}


@pytest.mark.parametrize(("mask", "expected"), [(0, []), (1, [0]), (0b101100, [2, 3, 5])])
def test_places_of_a_mask(mask: int, expected: list[int]) -> None:
    assert list(places(mask)) == expected
