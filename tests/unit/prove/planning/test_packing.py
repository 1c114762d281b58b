"""GPUs granted to cases: never two on one, none starves, and small ones use what a big one waits for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.prove.planning.packing import Demand, Free, grants

GPUS = 8
MEMORY = 64
NAMES = tuple("abcdefgh")
DEMANDS = st.builds(Demand, st.sampled_from((1, 2, 3, 4, 8)), st.integers(1, 100).map(float), st.integers(0, MEMORY))
QUEUES = st.lists(DEMANDS, min_size=1, max_size=12)


def gpus(*counts: int) -> list[Demand]:
    """Return demands without memory."""
    return [Demand(count) for count in counts]


@pytest.mark.parametrize(
    ("waiting", "running", "free", "granted"),
    [
        ([], [], 8, {}),
        (gpus(2), [], 8, {0: "ab"}),
        (gpus(2, 2, 2), [], 4, {0: "ab", 1: "cd"}),  # the same size: in the order of arrival
        (gpus(1, 4, 2), [], 8, {1: "abcd", 2: "ef", 0: "g"}),  # the largest first
        (gpus(8, 1), gpus(4), 4, {}),  # a case of all GPUs leaves nothing over
        (gpus(6, 1, 1, 1), gpus(7), 1, {1: "a"}),  # one of six leaves two over
        (gpus(6, 1, 1, 1), gpus(6), 2, {1: "a", 2: "b"}),
        (gpus(6, 1, 1, 1), gpus(6, 1), 1, {1: "a"}),
        (gpus(6, 1), gpus(6, 1, 1), 0, {}),
        (gpus(6, 1), gpus(4), 4, {}),  # which the running case, as it is smaller, takes
        (gpus(6, 2), gpus(3), 5, {}),
        (gpus(6, 3, 1), gpus(6), 2, {2: "a"}),  # two wait, and spare one
        ([Demand(3, memory=40), Demand(2, memory=40), Demand(1)], [], 8, {0: "abc", 2: "d"}),
        ([Demand(2, memory=70), Demand(1, memory=1)], [], 8, {}),  # a larger one waits for memory
        ([Demand(6, memory=70), *gpus(1, 1, 1)], [], 8, {1: "a", 2: "b"}),
        ([Demand(2, memory=70), Demand(2)], [], 8, {}),  # as large as the one that waits
        (gpus(4), [], 2, {}),
    ],
)
def test_grants(waiting: list[Demand], running: list[Demand], free: int, granted: dict[int, str]) -> None:
    found = grants(waiting, running, Free(NAMES[:free], GPUS, MEMORY))
    assert {index: "".join(names) for index, names in found.items()} == granted


@given(st.integers(2, GPUS), st.lists(st.integers(1, GPUS), max_size=4), st.lists(st.integers(1, GPUS), max_size=30))
def test_smaller_cases_do_not_starve_a_larger_one(first: int, others: list[int], arrivals: list[int]) -> None:
    """It starts when the cases that ran at its arrival have ended, though the smaller ones after it never end."""
    at_first = [count for place, count in enumerate(others) if sum(others[: place + 1]) <= GPUS]
    running, waiting = gpus(*at_first), gpus(first, *(count for count in arrivals if count < first))
    for _ in range(len(at_first) + 1):
        free = Free(NAMES[: GPUS - sum(demand.gpus for demand in running)], GPUS)
        started = grants(waiting, running, free)
        if 0 in started:
            return
        running += [waiting[index] for index in started]
        waiting = [demand for index, demand in enumerate(waiting) if index not in started]
        if at_first:
            running.remove(Demand(at_first.pop()))
    raise AssertionError(f"it waits for {running}")


@given(QUEUES, QUEUES, st.integers(0, GPUS), st.none() | st.integers(0, MEMORY))
def test_grants_are_disjoint_and_exact(
    waiting: list[Demand], running: list[Demand], free: int, memory: int | None
) -> None:
    found = grants(waiting, running, Free(NAMES[:free], GPUS, memory))
    names = [name for taken in found.values() for name in taken]
    assert len(names) == len({*names})
    assert {*names} <= {*NAMES[:free]}
    assert all(len(taken) == waiting[index].gpus for index, taken in found.items())
    assert memory is None or sum(waiting[index].memory for index in found) <= memory


@given(QUEUES)
def test_an_idle_machine_grants_the_largest(waiting: list[Demand]) -> None:
    assert waiting.index(max(waiting, key=lambda demand: demand.gpus)) in grants(waiting, [], Free(NAMES, GPUS, MEMORY))


def test_case_may_take_all_memory_that_is_left() -> None:
    assert grants([Demand(1, memory=64)], [], Free(("a",), 1, 64)) == {0: ("a",)}
    assert grants([Demand(1, memory=65)], [], Free(("a",), 1, 64)) == {}
