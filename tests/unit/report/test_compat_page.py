"""The compatibility page gives the rules of `megatrix check` from its embedded object."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from matrix.catalog.cell import Cell
from matrix.catalog.failure import Expectation, Level
from matrix.catalog.versions import NONE
from matrix.check.stack import build, parse_text
from matrix.report.compat_page import PICKED, compat_page, data
from tests.founding import SAVE
from tests.profiles import tries
from tests.unit.catalogs import catalog, clause, failure, real

EMBEDDED = data(real(), {SAVE: frozenset({Level.CPU})}).to_json()


def page_result(stack: dict[str, str]) -> dict[str, str]:
    """Return the expectation of each failure as compat.js does: that of the first matching rule."""
    places = {axis: EMBEDDED["known"][axis].index(stack.get(axis, "" if axis == "base" else NONE)) for axis in PICKED}

    def ruling(failure: dict[str, Any]) -> str:
        for rule in failure["rules"]:
            if all(places[axis] in taken for axis, taken in rule["takes"].items()):
                return str(rule["expectation"])
        return "unknown"

    return {failure["failure"]: ruling(failure) for failure in EMBEDDED["failures"]}


@tries(300)
@given(st.fixed_dictionaries({}, optional={axis: st.sampled_from(EMBEDDED["known"][axis]) for axis in PICKED}))
def test_page_agrees_with_the_catalog(stack: dict[str, Any]) -> None:
    cell = Cell(**{"base": "", "torch": NONE, "mcore": NONE, **stack})
    assert {one.id: one.expectation(cell).value for one in real().failures} == page_result(stack)


def test_container_versions_agree_with_the_command_line() -> None:
    for base, brought in EMBEDDED["brings"].items():
        stack = build(real(), parse_text(real(), f"base={base} mcore=0.8.0")).cell
        assert brought == {"torch": stack.torch, **({"te": stack.te} if stack.te != NONE else {})}


def test_builds_of_first_reports_can_be_picked() -> None:
    assert {"1.8.0+37280ec", "1.9.0+e79d915"} <= set(EMBEDDED["known"]["te"])
    assert {"2.4.0a0+3bcc3cddb5"} <= set(EMBEDDED["known"]["torch"])
    assert "535" in EMBEDDED["known"]["driver"]


def test_rule_on_an_axis_without_field_is_omitted() -> None:
    entry = failure(affected=(clause(gpus=">=2", mcore=">=0"),), works=(clause(mcore=">=0"),))
    (embedded,) = data(catalog(entry), {}).failures
    assert [rule.expectation for rule in embedded.rules] == [Expectation.WORKS]


def test_page_embeds_one_object_and_fetches_nothing() -> None:
    html = compat_page(real(), {})
    (embedded,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, flags=re.DOTALL)
    assert len(json.loads(embedded)["failures"]) == len(real().failures)
    assert "<" not in embedded
    assert not re.search(r'(src|href)="(https?:)?//', html)
    assert len(html) < 500_000
