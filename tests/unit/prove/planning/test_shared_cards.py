"""Cases that share a GPU: never more than its memory, in the order of arrival."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.catalog.failure import CaseNeed
from matrix.ground.catalog.schema import Size
from matrix.prove.execution.ranks.overlay_server import KEPT
from matrix.prove.execution.workers import next_group
from matrix.prove.planning.packing import Card, Demand, shared
from tests.unit.catalogs import failure

GIB: Final = 2**30  # bytes
CARD: Final = 78 * GIB  # of an H100 that processes can use
SEEN: Final = 9.4  # s of imports where a case took 11.4 s on an H100, 2026-11-27 (42 cases in 8 minutes)
IMPORTS, BODY = 15.0, 2.0  # s of a case, as measured on an H100: the card is idle in the first
OTHER_IMPORTS: Final = 2.0  # s: a rank imports the GPT model itself, a sixth of the whole on a CPU (core 0.16.1)
WORKERS: Final = 4  # of one GPU with 16 cores (matrix.cli.places)


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
class Way:
    """How cases of one card run: what of the three parts is in use, and the number of workers."""

    workers: int
    share: bool = False  # cases that fit the card together hold it together
    ready: bool = False  # a case claims the card when it has imported, not before
    hold: bool = False  # a worker holds the imports of its last overlays


@dataclass
class Simulated:
    """Cases of one card on a simulated clock: each has a demand and the name of its overlays.

    `seconds` is the end of the last case, `most` the most bytes of the card that were used at once.
    """

    cases: Sequence[tuple[Demand, str]]
    way: Way
    imports: float = IMPORTS
    seconds: float = 0.0
    most: int = 0

    def __post_init__(self) -> None:
        self.waiting = list(range(len(self.cases)))  # without a worker
        self.claiming: list[int] = []
        self.running: list[int] = []
        self.worker: dict[int, int] = {}
        self.held: list[list[str]] = [[] for _ in range(self.way.workers)]  # by worker, the last one last
        self.events: list[tuple[float, int, str]] = []  # time, case, what ends
        while self.waiting or self.worker:
            self.hand_out()
            self.grant()
            self.seconds, case, ended = heapq.heappop(self.events)
            if ended == "imports" and self.way.ready:
                self.claiming.append(case)
            elif ended == "imports":
                self.begin(case, "body", self.cases[case][0].seconds)
            else:
                self.running.remove(case)
                del self.worker[case]

    def begin(self, case: int, what: str, seconds: float) -> None:
        heapq.heappush(self.events, (self.seconds + seconds, case, what))

    def begin_imports(self, case: int) -> None:
        """Import all, or what the worker does not hold of the case's overlays."""
        held, overlays = self.held[self.worker[case]], self.cases[case][1]
        self.begin(case, "imports", OTHER_IMPORTS if self.way.hold and overlays in held else self.imports)
        held[:] = [*(name for name in held if name != overlays), overlays][-KEPT:]

    def hand_out(self) -> None:
        """Give each idle worker its next case."""
        for worker in set(range(self.way.workers)) - set(self.worker.values()):
            if self.waiting:
                last, *others = ([*held, ""][-2] if held else "" for held in (self.held[worker], *self.held))
                groups = [(1, self.cases[case][1]) for case in self.waiting]
                case = self.waiting.pop(next_group(groups, last, others))
                self.worker[case] = worker
                if self.way.ready:
                    self.begin_imports(case)
                else:
                    self.claiming.append(case)

    def grant(self) -> None:
        """Start the cases that get their part of the card."""
        demands = [self.demand(case) for case in self.claiming]
        left = CARD - sum(self.demand(case).card for case in self.running)
        starts = [self.claiming[index] for index in shared(demands, [Card("card", left, len(self.cases))])]
        for case in starts:
            self.claiming.remove(case)
            self.running.append(case)
            if self.way.ready:
                self.begin(case, "body", self.cases[case][0].seconds)
            else:
                self.begin_imports(case)
        self.most = max(self.most, sum(self.cases[case][0].card for case in self.running))

    def demand(self, case: int) -> Demand:
        demand = self.cases[case][0]
        return demand if self.way.share else replace(demand, card=CARD)


def test_400_cases_take_a_quarter_of_the_time() -> None:
    """On one simulated card; the sizes are those of tiny models and of a few larger ones, on 20 overlays."""
    chance = random.Random(7)
    sizes = [chance.choice([2, 2, 2, 2, 8, 24]) * GIB for _ in range(400)]
    cases = [(Demand(1, BODY, card=size), f"core {number % 20}") for number, size in enumerate(sizes)]
    ways = {
        "before": Way(1),
        "share": Way(WORKERS, share=True),
        "and claim when ready": Way(WORKERS, share=True, ready=True),
        "and hold imports": Way(WORKERS, share=True, ready=True, hold=True),
        "without sharing": Way(WORKERS, ready=True, hold=True),
        "with 14 workers": Way(14, share=True, ready=True, hold=True),
    }
    runs = {name: Simulated(cases, way) for name, way in ways.items()}
    assert {name: run.seconds for name, run in runs.items()} == {
        "before": 6800,
        "share": 1717,
        "and claim when ready": 1702,
        "and hold imports": 467,
        "without sharing": 845,
        "with 14 workers": 159,
    }  # as in docs/gpu.md
    assert all(run.most <= CARD for run in runs.values())
    assert 4 * runs["and hold imports"].seconds <= runs["before"].seconds


def test_400_cases_of_the_catalog_share_a_card() -> None:
    """With the default of the catalog, and its share of cases with one, two and four ranks, of 20 overlays."""
    entry = failure().case[0]
    ranks = [1, 1, 1, 1, 2, 2, 2, 4]
    sizes = [replace(entry, ranks=ranks[number * 7 % 8]).part(1) for number in range(400)]
    cases = [(Demand(1, BODY, card=size), f"core {number % 20}") for number, size in enumerate(sizes)]
    before, after = Simulated(cases, Way(8), SEEN), Simulated(cases, Way(12, True, True, True), SEEN)
    assert (round(before.seconds), round(after.seconds)) == (4560, 155)  # as in docs/gpu.md
    assert after.most <= CARD


@pytest.mark.parametrize(
    ("changes", "gpus", "part"),
    [
        ({"ranks": 1}, 1, 4 * GIB),
        ({"ranks": 4}, 1, 16 * GIB),
        ({"ranks": 2}, 2, 0),  # each rank has its own
        ({"needs": (CaseNeed.WHOLE_CARD,)}, 1, 0),
        ({"card": Size(8 * GIB), "ranks": 2}, 1, 16 * GIB),
    ],
)
def test_part_is_that_of_all_ranks(changes: dict[str, Any], gpus: int, part: int) -> None:
    assert replace(failure().case[0], **changes).part(gpus) == part
