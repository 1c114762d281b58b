"""The catalog by topic, and which releases fix a failure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from matrix.ground.catalog.model import Topic
from matrix.ground.catalog.schema import Identifier
from matrix.prove.authoring.overview import GATES, UNFILED, by_topic, fixed_in, summary
from tests.unit.catalogs import case, catalog, clause, failure, real

AFFECTED: dict[str, tuple[tuple[dict[str, Any], ...], tuple[str, ...]]] = {
    "one bound": (({"mcore": ">=0.7,<0.9"},), ("megatron-core 0.9",)),
    "an unreleased end": (({"mcore": ">=0.7,<0.9.0.dev0"},), ("megatron-core 0.9.0",)),
    "an inclusive end is none": (({"mcore": ">=0.7,<=0.9"},), ()),
    "no end": (({"mcore": ">=0.7"},), ()),
    "either component": (({"mcore": "<0.9", "te": "<1.8"},), ("megatron-core 0.9", "Transformer Engine 1.8")),
    "the last of two ranges": (({"mcore": "<0.9"}, {"mcore": ">=0.10,<0.12"}), ("megatron-core 0.12",)),
    "a range without end": (({"mcore": "<0.9"}, {"mcore": ">=0.12"}), ()),
    "two components together": (
        ({"mcore": "<0.10", "te": ">=1.0"}, {"mcore": ">=0.10", "te": "<1.9"}),
        ("megatron-core 0.10 with Transformer Engine 1.9",),
    ),
    "no library of another package": (({"mcore": "<0.10"}, {"mcore": ">=0.10", "cudnn": "<9.12"}), ()),
    "another Python is no fix": (({"python": "<3.12"},), ()),
    "no rule": ((), ()),
}


@pytest.mark.parametrize("name", AFFECTED)
def test_fix_is_the_end_of_all_ranges(name: str) -> None:
    rules, expected = AFFECTED[name]
    assert fixed_in(failure(affected=tuple(clause(**rule) for rule in rules))) == expected


def test_rules_of_single_cases_count_alone() -> None:
    whole, single = clause(mcore="<0.9"), replace(clause(mcore="<0.12"), cases=(Identifier("tp2"),))
    assert fixed_in(failure(affected=(whole, single))) == ("megatron-core 0.9",)
    assert fixed_in(failure(affected=(single,))) == ("megatron-core 0.12",)


def test_failures_without_a_topic_come_last() -> None:
    """Gates, which are no failures, come after them, whatever their topic."""
    topic = Topic(Identifier("data"), "Datasets", "Is the data read?")
    breaks, runs = (clause(mcore="<0.9"),), (case(),)
    entries = (failure("a", affected=breaks), failure("b", affected=breaks, case=runs, topic="data"))
    gate = failure("c", case=runs, topic="data", affected=())
    listed = by_topic(replace(catalog(*entries, gate), topics=(topic,)))
    ids = {one.id: [line.failure.id for line in lines] for one, lines in listed.items()}
    assert ids == {"data": ["b"], "": ["a"], "gates": ["c"]}
    assert list(listed) == [topic, UNFILED, GATES]


def test_a_recorded_night_is_the_last_verification() -> None:
    dates = {summary(entry).last_verified for entry in real().failures}
    assert "" in dates
    assert len(dates) > 1
