"""Cases packed onto GPUs: never two on one, none starves, and small ones use what a big one waits for."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from matrix.planning.packing import (
    Demand,
    Free,
    RunningCase,
    Schedule,
    first_come,
    largest_first,
    next_to_start,
    schedule,
)

GPUS = 8
DEMANDS = st.builds(Demand, st.sampled_from((1, 2, 4, 8)), st.integers(1, 100).map(float), st.integers(0, 64))
QUEUES = st.lists(DEMANDS, min_size=1, max_size=12)
WORKERS = st.integers(1, 12)
MEMORY = 64


def held_at(found: Schedule, demands: Sequence[Demand], moment: float) -> list[Demand]:
    """Return what runs at a moment."""
    spans = zip(demands, found.starts, found.ends, strict=True)
    return [one for one, starts, ends in spans if starts <= moment < ends]


@given(QUEUES, WORKERS, st.data())
def test_no_gpu_has_two_cases(demands: list[Demand], workers: int, data: st.DataObject) -> None:
    """However wrong the expected seconds are: no more GPUs and memory than there are, and at most `workers` cases."""
    actual = [data.draw(st.floats(0.1, 500)) for _ in demands]
    found = schedule(demands, Free(GPUS, MEMORY), workers, actual=actual)
    for moment in found.starts:
        running = held_at(found, demands, moment)
        assert sum(one.gpus for one in running) <= found.most <= GPUS
        assert sum(one.memory for one in running) <= MEMORY
        assert len(running) <= workers


@given(QUEUES, WORKERS, st.data())
def test_each_case_runs_once_for_its_time(demands: list[Demand], workers: int, data: st.DataObject) -> None:
    actual = [float(data.draw(st.integers(1, 500))) for _ in demands]
    found = schedule(demands, Free(GPUS), workers, actual=actual)
    assert [end - start for start, end in zip(found.starts, found.ends, strict=True)] == actual


def expected_start(first: Demand, running: Sequence[RunningCase], free: Free, now: float) -> float:
    """Return when the first case would start if no other one did."""
    moments = sorted({now, *(one.ends for one in running if one.ends > now)})
    return next(
        moment
        for moment in moments
        if sum(one.demand.gpus for one in running if one.ends <= moment) + free.gpus >= first.gpus
    )


@given(QUEUES, st.integers(2, 12), st.data())
def test_nothing_overtakes_after_the_expected_start(demands: list[Demand], workers: int, data: st.DataObject) -> None:
    """The big case does not starve, even if every case takes longer than expected.

    When a case becomes the first, its expected start is fixed by what runs then. No other starts after that time.
    """
    actual = [one.seconds * data.draw(st.sampled_from((0.1, 1.0, 10.0))) for one in demands]
    promised: dict[int, float] = {}

    def watched(waiting: Sequence[Demand], running: Sequence[RunningCase], free: Free, now: float) -> int | None:
        chosen = next_to_start(waiting, running, free, now)
        if waiting:
            by = promised.setdefault(id(waiting[0]), expected_start(waiting[0], running, free, now))
            assert not chosen or now < by
        return chosen

    distinct = [Demand(one.gpus, one.seconds) for one in demands]  # each is an object of its own
    schedule(distinct, Free(GPUS), workers, actual=actual, decide=watched)


@given(QUEUES, st.integers(2, 12))
def test_overtaking_does_not_delay_the_first(demands: list[Demand], workers: int) -> None:
    """With exact seconds, the first waiting case starts no later than without the others."""

    def watched(waiting: Sequence[Demand], running: Sequence[RunningCase], free: Free, now: float) -> int | None:
        chosen = next_to_start(waiting, running, free, now)
        if waiting:
            by = promised.setdefault(id(waiting[0]), expected_start(waiting[0], running, free, now))
            assert chosen != 0 or now <= by
        return chosen

    promised: dict[int, float] = {}
    schedule([Demand(one.gpus, one.seconds) for one in demands], Free(GPUS), workers, decide=watched)


def test_short_case_starts_while_a_big_one_waits() -> None:
    """Eight GPUs are wanted, and free in 60 s: what ends before may use those that are free."""
    running = (RunningCase(Demand(4, 60.0), 60.0),)
    waiting = [Demand(8, 10.0), Demand(1, 90.0), Demand(2, 60.0), Demand(4, 61.0)]
    assert next_to_start(waiting, running, Free(4), 0.0) == 2
    assert next_to_start(waiting[:2], running, Free(4), 0.0) is None


def test_long_case_starts_where_the_first_needs_less() -> None:
    running = (RunningCase(Demand(7, 60.0), 60.0),)
    assert next_to_start([Demand(4, 10.0), Demand(1, 900.0)], running, Free(1), 0.0) == 1


def test_unknown_holder_lets_nothing_overtake() -> None:
    assert next_to_start([Demand(8, 10.0), Demand(1, 1.0)], (), Free(4), 0.0) is None


def test_memory_is_packed_too() -> None:
    """Two cases with limits of 40 GiB on 64 GiB: the second would be killed outside of its limit."""
    demands = [Demand(2, 10.0, 40), Demand(2, 10.0, 40), Demand(1, 10.0)]
    assert schedule(demands, Free(GPUS, 64), 8).starts == (0.0, 10.0, 0.0)


def test_packing_is_shorter_than_a_queue() -> None:
    demands = [Demand(count, 10.0) for count in (1, 8, 1, 8, 1, 8, 1, 1)]
    queue = schedule(demands, Free(GPUS), len(demands), decide=first_come)
    packed = schedule(largest_first(demands), Free(GPUS), len(demands))
    assert (queue.seconds, packed.seconds, packed.most) == (70.0, 40.0, 8)
