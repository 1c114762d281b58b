"""The compatibility table answers as `megatrix compat` does, from what stands in the page."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from matrix.catalog.cell import Cell
from matrix.catalog.failure import Expectation, Level
from matrix.catalog.versions import NONE
from matrix.check.compat import parse_stack
from matrix.report.compat_page import PICKED, compat_page, data
from tests.founding import SAVE
from tests.unit.catalogs import catalog, clause, failure, real

HELD = data(real(), {SAVE: frozenset({Level.CPU})}).to_json()


def answered(stack: dict[str, str]) -> dict[str, str]:
    """What the page answers: the first rule whose places hold the stack's (reports/compat.js)."""
    places = {axis: HELD["known"][axis].index(stack.get(axis, "" if axis == "base" else NONE)) for axis in PICKED}

    def ruling(failure: dict[str, Any]) -> str:
        for rule in failure["rules"]:
            if all(places[axis] in taken for axis, taken in rule["takes"].items()):
                return str(rule["expectation"])
        return "unknown"

    return {failure["failure"]: ruling(failure) for failure in HELD["failures"]}


@settings(max_examples=300, deadline=None)
@given(st.fixed_dictionaries({}, optional={axis: st.sampled_from(HELD["known"][axis]) for axis in PICKED}))
def test_the_page_answers_as_the_catalog_does(stack: dict[str, str]) -> None:
    cell = Cell(**{"base": "", "torch": NONE, "mcore": NONE, **stack})
    assert {one.id: one.expectation(cell).value for one in real().failures} == answered(stack)


def test_a_container_brings_what_the_command_line_takes_it_to_bring() -> None:
    for base, brought in HELD["brings"].items():
        stack = parse_stack(real(), f"base={base} mcore=0.8.0")
        assert brought == {"torch": stack.torch, **({"te": stack.te} if stack.te != NONE else {})}


def test_every_build_of_a_founding_report_can_be_picked() -> None:
    assert {"1.8.0+37280ec", "1.9.0+e79d915"} <= set(HELD["known"]["te"])
    assert {"2.4.0a0+3bcc3cddb5"} <= set(HELD["known"]["torch"])
    assert "535" in HELD["known"]["driver"]


def test_a_rule_on_what_can_t_be_picked_takes_no_stack() -> None:
    entry = failure(affected=(clause(gpus=">=2", mcore=">=0"),), works=(clause(mcore=">=0"),))
    (held,) = data(catalog(entry), {}).failures
    assert [rule.expectation for rule in held.rules] == [Expectation.WORKS]


def test_one_object_is_embedded_and_nothing_is_fetched() -> None:
    html = compat_page(real(), {})
    (embedded,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, flags=re.DOTALL)
    assert len(json.loads(embedded)["failures"]) == len(real().failures)
    assert "<" not in embedded
    assert not re.search(r'(src|href)="(https?:)?//', html)
    assert len(html) < 500_000
