"""GPUs granted to cases: never two on one, none starves, and small ones use what a big one waits for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.prove.planning.packing import Demand, Free, Schedule, grants, largest_first, schedule

GPUS = 8
MEMORY = 64
NAMES = tuple("abcdefgh")
DEMANDS = st.builds(Demand, st.sampled_from((1, 2, 3, 4, 8)), st.integers(1, 100).map(float), st.integers(0, MEMORY))
QUEUES = st.lists(DEMANDS, min_size=1, max_size=12)
WORKERS = st.integers(1, 12)


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


def running_at(timetable: Schedule, demands: Sequence[Demand], moment: float) -> list[Demand]:
    """Return what runs at a moment."""
    spans = zip(demands, timetable.starts, timetable.ends, strict=True)
    return [demand for demand, starts, ends in spans if starts <= moment < ends]


@given(QUEUES, WORKERS)
def test_no_gpu_has_two_cases(demands: list[Demand], workers: int) -> None:
    """No more GPUs and memory are held than there are, and at most `workers` cases run, each for its time."""
    timetable = schedule(demands, GPUS, workers, MEMORY)
    for moment in timetable.starts:
        running = running_at(timetable, demands, moment)
        assert sum(demand.gpus for demand in running) <= timetable.most <= GPUS
        assert sum(demand.memory for demand in running) <= MEMORY
        assert len(running) <= workers
    took = [end - start for start, end in zip(timetable.starts, timetable.ends, strict=True)]
    assert took == [demand.seconds for demand in demands]


def test_memory_is_packed_too() -> None:
    """Two cases with limits of 40 GiB on 64 GiB: the second would be killed outside of its limit."""
    demands = [Demand(2, 10.0, 40), Demand(2, 10.0, 40), Demand(1, 10.0)]
    assert schedule(demands, GPUS, 8, MEMORY).starts == (0.0, 10.0, 0.0)


def test_largest_first_is_shortest() -> None:
    demands = [Demand(count, 10.0) for count in (1, 8, 1, 8, 1, 8, 1, 1)]
    packed = schedule(largest_first(demands), GPUS, len(demands))
    assert (packed.seconds, packed.most) == (40.0, 8)


def test_nothing_to_run_takes_no_time() -> None:
    assert schedule([], GPUS, 1).seconds == 0.0


def test_case_may_take_all_memory_that_is_left() -> None:
    assert grants([Demand(1, memory=64)], [], Free(("a",), 1, 64)) == {0: ("a",)}
    assert grants([Demand(1, memory=65)], [], Free(("a",), 1, 64)) == {}


def test_workers_take_the_largest_and_longest_first() -> None:
    demands = [Demand(1, 5.0), Demand(4, 1.0), Demand(2, 9.0), Demand(4, 7.0)]
    assert largest_first(demands) == [Demand(4, 7.0), Demand(4, 1.0), Demand(2, 9.0), Demand(1, 5.0)]


def test_two_workers_hold_two_cases_at_once() -> None:
    """The third starts when the first has ended, although GPUs are free; cases without GPUs hold none."""
    planned = schedule([Demand(1, 4.0), Demand(1, 10.0), Demand(1, 3.0)], gpus=8, workers=2)
    assert planned == Schedule((0.0, 0.0, 4.0), (4.0, 10.0, 7.0), 2)
    assert schedule([Demand(0, 4.0)], gpus=8, workers=2) == Schedule((0.0,), (4.0,), 0)
    assert schedule([], gpus=8, workers=2) == Schedule((), (), 0)


def test_worker_takes_the_next_case_at_once() -> None:
    """Two workers, although the GPUs suffice for all."""
    made = schedule([Demand(1, 1.0), Demand(1, 10.0), Demand(1, 5.0), Demand(1, 5.0)], 4, workers=2)
    assert (made.starts, made.ends, made.most) == ((0.0, 0.0, 1.0, 6.0), (1.0, 10.0, 6.0, 11.0), 2)


def test_case_that_waits_for_gpus_keeps_its_worker() -> None:
    """Three workers: one case waits for two GPUs until the second ends, and only then two workers are free."""
    demands = [Demand(1, 1.0), Demand(1, 5.0), Demand(0, 10.0), Demand(2, 2.0), Demand(0, 1.0), Demand(0, 1.0)]
    assert schedule(demands, 2, workers=3).starts == (0.0, 0.0, 0.0, 5.0, 5.0, 6.0)
