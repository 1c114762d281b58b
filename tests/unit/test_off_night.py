"""tests/off_night.py: cells are drawn for the claims that they add."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.off_night import claim, draw


def case(base: str, cell: int, name: str, expectation: str = "works") -> dict[str, Any]:
    id_ = f"{base}/mcore-{cell}"
    key = f"{id_} failure {name} cpu"
    return {
        "key": key, "cell": {"id": id_, "base": base}, "failure": "failure", "case": name, "expectation": expectation,
    }  # fmt: skip


def test_claims_are_drawn_on_different_bases() -> None:
    items = [case(base, cell, "one") for base in ("torch-2.1", "torch-2.2") for cell in range(9)]
    keys = draw(items, cells=2, each=3, chance=random.Random(1))
    assert {key.split("/")[0] for key in keys} == {"torch-2.1", "torch-2.2"}


def test_cell_with_more_claims_comes_first() -> None:
    items = [case("torch-2.1", 1, "one"), case("torch-2.1", 2, "one"), case("torch-2.1", 2, "two", "broken")]
    assert draw(items, cells=1, each=1, chance=random.Random(1)) == [item["key"] for item in items[1:]]


@given(st.sets(st.tuples(st.integers(0, 9), st.sampled_from("abc")), min_size=1), st.integers(1, 3), st.integers(0, 99))
def test_each_claim_is_drawn_as_often_as_asked(drawn: set[tuple[int, str]], each: int, seed: int) -> None:
    items = [case("torch-2.1", cell, name) for cell, name in sorted(drawn)]
    keys = draw(items, cells=10, each=each, chance=random.Random(seed))
    of_key = {item["key"]: claim(item) for item in items}
    possible = Counter(map(claim, items))
    assert len(keys) == len({*keys})
    assert Counter(of_key[key] for key in keys) == {name: min(each, count) for name, count in possible.items()}
