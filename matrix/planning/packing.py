"""Pack cases onto the GPUs of a machine: which waiting case starts next, and how long all of them take. Pure functions.

The order is that of EASY backfilling: the case that waits longest is next, and others start before it only if, by their
expected seconds, they do not delay it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Demand:
    """What a case holds while it runs: GPUs, and bytes of the host's memory. `seconds` is the expected time."""

    gpus: int
    seconds: float = 0.0
    memory: int = 0

    @property
    def size(self) -> tuple[int, float]:
        """Return the sort key: the most GPUs first, then the longest, with reverse=True."""
        return self.gpus, self.seconds


@dataclass(frozen=True)
class RunningCase:
    """A case that runs: what it holds, and the time (s) at which it is expected to end."""

    demand: Demand
    ends: float


@dataclass(frozen=True)
class Free:
    """What no case holds; `memory` is in bytes, None for no limit."""

    gpus: int
    memory: int | None = None

    def fits(self, demand: Demand) -> bool:
        """Return whether a case can start."""
        return demand.gpus <= self.gpus and (self.memory is None or demand.memory <= self.memory)

    def plus(self, demand: Demand, sign: int = 1) -> Free:
        """Return what is free after a case ended; with sign -1, after it started."""
        memory = None if self.memory is None else self.memory + sign * demand.memory
        return Free(self.gpus + sign * demand.gpus, memory)


Decide = Callable[[Sequence[Demand], Sequence[RunningCase], Free, float], "int | None"]


def next_to_start(waiting: Sequence[Demand], running: Sequence[RunningCase], free: Free, now: float) -> int | None:
    """Return the index of the case that starts now, None where all wait. `waiting` is in the order of arrival.

    The first one starts as soon as it fits. Meanwhile another may start, the largest first, if it ends before the first
    is expected to start, or leaves it enough. Once that time has passed none may: estimates that are too low delay the
    first one by the cases that run then, and by no other.
    """
    if not waiting:
        return None
    first = waiting[0]
    if free.fits(first):
        return 0
    starts, left = now, free
    for one in sorted(running, key=lambda one: one.ends):
        starts, left = max(starts, one.ends), left.plus(one.demand)
        if left.fits(first):
            break
    else:
        return None  # something else holds them, until an unknown time
    if starts <= now:
        return None
    left = left.plus(first, -1)
    able = [
        place for place, one in enumerate(waiting) if free.fits(one) and (now + one.seconds <= starts or left.fits(one))
    ]
    return max(able, key=lambda place: waiting[place].size, default=None)


def first_come(waiting: Sequence[Demand], running: Sequence[RunningCase], free: Free, now: float) -> int | None:
    """Return the first case once it fits: a simple queue, to which `next_to_start` is compared."""
    return 0 if waiting and free.fits(waiting[0]) else None


@dataclass(frozen=True)
class Schedule:
    """The start of each case in s, its end, and the largest number of GPUs that are held at once."""

    starts: tuple[float, ...]
    ends: tuple[float, ...]
    most: int

    @property
    def seconds(self) -> float:
        """Return the time at which the last case ends."""
        return max(self.ends, default=0.0)


def schedule(
    demands: Sequence[Demand],
    machine: Free,
    workers: int,
    *,
    actual: Sequence[float] | None = None,
    decide: Decide = next_to_start,
) -> Schedule:
    """Return when each case runs if `workers` take the cases in this order, and wait for what they need.

    `actual` are the seconds that the cases take, by default those expected. Each case must fit the machine.
    """
    takes = [one.seconds for one in demands] if actual is None else actual
    starts, ends, most = [0.0] * len(demands), [0.0] * len(demands), 0
    upcoming, waiting = list(range(len(demands))), list[int]()
    running: dict[int, RunningCase] = {}
    events: list[tuple[float, int]] = []
    free, now = machine, 0.0
    while upcoming or waiting or events:
        while upcoming and len(waiting) + len(running) < workers:
            waiting.append(upcoming.pop(0))
        chosen = decide([demands[one] for one in waiting], list(running.values()), free, now)
        if chosen is not None:
            place = waiting.pop(chosen)
            free = free.plus(demands[place], -1)
            running[place] = RunningCase(demands[place], now + demands[place].seconds)
            starts[place], ends[place] = now, now + takes[place]
            most = max(most, sum(one.demand.gpus for one in running.values()))
            heapq.heappush(events, (ends[place], place))
            continue
        now, place = heapq.heappop(events)
        free = free.plus(running.pop(place).demand)
    return Schedule(tuple(starts), tuple(ends), most)


def largest_first(demands: Iterable[Demand]) -> list[Demand]:
    """Return the cases in the order in which workers take them."""
    return sorted(demands, key=lambda one: one.size, reverse=True)
