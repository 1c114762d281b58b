"""A turn: one party at a time, whatever the order of beginnings and ends."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from matrix.provision.turn import Turn

NAMES = st.sampled_from(["a", "b", "c"])


@given(st.lists(st.tuples(st.sampled_from(["begin", "end"]), NAMES)))
def test_only_the_holder_ends_its_turn(steps: list[tuple[str, str]]) -> None:
    """Ends without a turn, and several of them, change nothing: tox reports the end of an environment twice."""
    turn, holder = Turn(), ""
    for step, name in steps:
        if step == "end":
            turn.end(name)
            holder = "" if holder == name else holder
        elif holder in ("", name):  # another one would wait
            turn.begin(name)
            holder = name
    if holder:
        turn.end(holder)
    turn.begin("next")


def test_one_party_at_a_time_works() -> None:
    turn, inside, most = Turn(), list[str](), list[int]()
    start = threading.Barrier(4)

    def work(name: str) -> None:
        start.wait()
        for _ in range(200):
            turn.begin(name)
            inside.append(name)
            most.append(len(inside))
            inside.remove(name)
            turn.end(name)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, "abcd"))
    assert (max(most), len(most)) == (1, 800)
