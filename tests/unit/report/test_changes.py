"""What changed: new reds first, and a plan that shrank is seen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.report.changes import changes
from matrix.store.history import Earlier
from matrix.verdicts.record import Verdict
from tests.unit.report.samples import MCORES, cell, record

CASE = record()
VERDICT = st.sampled_from(list(Verdict))


def test_without_an_earlier_run_nothing_is_said() -> None:
    assert changes([CASE], {}).since == ""


def test_a_case_as_before_is_no_change() -> None:
    assert changes([CASE], {CASE.key: Earlier(1, "a", Verdict.HOLDS)}).groups == ()


@given(st.lists(st.tuples(st.none() | VERDICT, VERDICT), max_size=len(MCORES)))
def test_newly_red_comes_first_and_every_difference_is_there_once(ways: list[tuple[Verdict | None, Verdict]]) -> None:
    cases = [replace(record(now), cell=cell(mcore=mcore)) for mcore, (_, now) in zip(MCORES, ways, strict=False)]
    before = {case.key: Earlier(1, "a", was) for case, (was, _) in zip(cases, ways, strict=True) if was}
    told = changes(cases, {**before, "another": Earlier(1, "a", Verdict.HOLDS)})
    keys = [each.key for group in told.groups for each in group.records]
    assert sorted(keys) == sorted(
        case.key for case, (was, now) in zip(cases, ways, strict=True) if (was or Verdict.NOT_REACHED) is not now
    )
    assert set(keys[: len(told.newly_red)]) == told.newly_red


@pytest.mark.parametrize(
    ("was", "now", "new"),
    [
        (Verdict.HOLDS, Verdict.REGRESSED, True),
        (Verdict.UNAVAILABLE, Verdict.UNEXPLAINED, True),
        (None, Verdict.VANISHED, True),
        (Verdict.REGRESSED, Verdict.UNEXPLAINED, False),
        (Verdict.REGRESSED, Verdict.HOLDS, False),
    ],
)
def test_newly_red_is_what_was_not_red(was: Verdict | None, now: Verdict, new: bool) -> None:
    case = record(now)
    before = {"another": Earlier(1, "a", Verdict.HOLDS)} | ({case.key: Earlier(1, "a", was)} if was else {})
    assert (case.key in changes([case], before).newly_red) is new


def test_what_the_latest_run_had_and_this_one_does_not_plan_is_dropped() -> None:
    before = {
        "old": Earlier(1, "a", Verdict.HOLDS),
        "gone": Earlier(2, "b", Verdict.HOLDS),
        CASE.key: Earlier(2, "b", Verdict.HOLDS),
    }
    told = changes([CASE], before)
    assert (told.since, told.dropped) == ("b", ("gone",))
