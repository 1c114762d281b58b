"""Changes since the earlier runs: newly red first; cases dropped from the plan are listed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.verdicts.record import Verdict
from matrix.ground.verdicts.trend import PastResult
from matrix.show.changes import changes
from tests.unit.show.samples import MCORES, cell, changed, record

CASE = record()
VERDICT = st.sampled_from(list(Verdict))


def test_no_changes_without_an_earlier_run() -> None:
    assert changes([CASE], {}).since == ""


def test_same_verdict_is_no_change() -> None:
    assert changes([CASE], {CASE.key: PastResult(1, "a", Verdict.HOLDS)}).groups == ()


@given(st.lists(st.tuples(st.none() | VERDICT, VERDICT), max_size=len(MCORES)))
def test_newly_red_comes_first_and_changes_appear_once(steps: list[tuple[Verdict | None, Verdict]]) -> None:
    cases = [changed(record(now), cell=cell(mcore=mcore)) for mcore, (_, now) in zip(MCORES, steps, strict=False)]
    before = {case.key: PastResult(1, "a", was) for case, (was, _) in zip(cases, steps, strict=True) if was}
    found = changes(cases, {**before, "another": PastResult(1, "a", Verdict.HOLDS)})
    keys = [each.key for group in found.groups for each in group.records]
    assert sorted(keys) == sorted(
        case.key for case, (was, now) in zip(cases, steps, strict=True) if (was or Verdict.NOT_REACHED) is not now
    )
    assert set(keys[: len(found.newly_red)]) == found.newly_red


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
def test_newly_red_was_not_red_before(was: Verdict | None, now: Verdict, new: bool) -> None:
    case = record(now)
    before = {"another": PastResult(1, "a", Verdict.HOLDS)} | ({case.key: PastResult(1, "a", was)} if was else {})
    assert (case.key in changes([case], before).newly_red) is new


def test_case_of_latest_run_not_planned_is_dropped() -> None:
    before = {
        "old": PastResult(1, "a", Verdict.HOLDS),
        "gone": PastResult(2, "b", Verdict.HOLDS),
        CASE.key: PastResult(2, "b", Verdict.HOLDS),
    }
    found = changes([CASE], before)
    assert (found.since, found.dropped) == ("b", ("gone",))
