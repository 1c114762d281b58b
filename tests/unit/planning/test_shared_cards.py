"""Cases that share a GPU: never more than its memory, in the order of arrival."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from matrix.planning.packing import Card, Demand, shared

GIB: Final = 2**30  # bytes
CARD: Final = 78 * GIB  # of an H100 that processes can use
IMPORTS, BODY = 15.0, 2.0  # s of a case, as measured on an H100: the card is idle in the first


def card(name: str, free: int, places: int = 9) -> Card:
    return Card(name, free * GIB, places)


def demand(size: int, gpus: int = 1) -> Demand:
    return Demand(gpus, card=size * GIB)


def test_case_takes_the_tightest_card() -> None:
    assert shared([demand(4)], [card("a", 40), card("b", 5)]) == {0: "b"}


def test_cases_fill_a_card_up_to_its_memory() -> None:
    assert shared([demand(30), demand(30), demand(30)], [card("a", 78)]) == {0: "a", 1: "a"}


def test_places_bound_the_cases_of_a_card() -> None:
    assert shared([demand(1), demand(1)], [card("a", 78, places=1)]) == {0: "a"}


def test_waiting_case_is_not_passed_over() -> None:
    """The second card is kept for the first case: a later one gets the other."""
    assert shared([demand(70), demand(20)], [card("a", 30), card("b", 50)]) == {1: "a"}


def test_whole_gpus_and_several_are_not_shared() -> None:
    assert shared([Demand(1), demand(1, gpus=2)], [card("a", 78)]) == {}


@given(
    st.lists(st.tuples(st.integers(1, 2), st.integers(0, 90)), max_size=20),
    st.lists(st.tuples(st.integers(0, 80), st.integers(0, 4)), max_size=4),
)
def test_no_card_gets_more_than_it_has(sizes: list[tuple[int, int]], free: list[tuple[int, int]]) -> None:
    cards = [card(str(place), size, places) for place, (size, places) in enumerate(free)]
    waiting = [demand(size, gpus) for gpus, size in sizes]
    granted = shared(waiting, cards)
    for one in cards:
        mine = [waiting[index] for index, name in granted.items() if name == one.name]
        assert sum(item.card for item in mine) <= one.free
        assert len(mine) <= one.places
        assert all(item.gpus == 1 and item.card for item in mine)


@dataclass(frozen=True)
class Simulated:
    """The end of the last case in s, and the most bytes of the card that were used at once."""

    seconds: float
    most: int


def simulated(demands: Sequence[Demand], workers: int, *, share: bool) -> Simulated:
    """Return how cases of one card run on a simulated clock: `workers` import, then take the card for the body.

    Without sharing, a case holds the whole card while it imports, as one process after another does.
    """
    clock, most, upcoming = 0.0, 0, list(range(len(demands)))
    events: list[tuple[float, int, str]] = []  # time, index, what ends
    ready, running, busy = list[int](), list[int](), 0
    while upcoming or ready or events:
        while upcoming and busy < (workers if share else 1):
            index, busy = upcoming.pop(0), busy + 1
            heapq.heappush(events, (clock + IMPORTS, index, "imports"))
        used = sum(demands[index].card for index in running)
        granted = shared([demands[index] for index in ready], [Card("card", CARD - used, len(demands))])
        starts = [ready[place] for place in granted]
        ready = [index for index in ready if index not in starts]
        for index in starts:
            running.append(index)
            heapq.heappush(events, (clock + demands[index].seconds, index, "body"))
        most = max(most, sum(demands[index].card for index in running))
        if not events:
            break
        clock, index, what = heapq.heappop(events)
        if what == "imports":
            ready.append(index)
        else:
            running.remove(index)
            busy -= 1
    return Simulated(clock, most)


def test_400_cases_take_a_quarter_of_the_time() -> None:
    """On one simulated card with 14 workers; the sizes are those of tiny models and of a few larger ones."""
    chance = random.Random(7)
    demands = [Demand(1, BODY, card=chance.choice([2, 2, 2, 2, 8, 24]) * GIB) for _ in range(400)]
    before, after = simulated(demands, 14, share=False), simulated(demands, 14, share=True)
    assert before.seconds == 400 * (IMPORTS + BODY)
    assert after.seconds * 4 <= before.seconds
    assert after.most <= CARD
    largest = [replace(item, card=CARD) for item in demands[:20]]
    assert simulated(largest, 14, share=True).most == CARD
