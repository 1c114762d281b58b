"""An entry with swapped expectations turns red in both directions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from matrix.ground.catalog.failure import Expectation
from matrix.ground.catalog.schema import Identifier
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.ground.verdicts.record import Record, Verdict
from matrix.prove.authoring.breaking import outcome, rejudged, swapped
from matrix.prove.planning.covering import pairwise
from matrix.prove.planning.night import night
from tests.unit.catalogs import catalog, clause, failure, shown
from tests.unit.show.samples import changed, record

BOTH = failure(affected=(clause(mcore="<0.9"),), works=(clause(mcore=">=0.9"),))
ONE = failure("one", affected=(clause(),))
NIGHT = night(catalog(BOTH, ONE), pairwise)


def test_every_expectation_is_swapped() -> None:
    before = {item.key: item.expectation for item in NIGHT if item.failure == "break"}
    after = {item.key: item.expectation for item in swapped(NIGHT, "break")}
    assert before.keys() == after.keys()
    assert all({before[key], after[key]} == {Expectation.BROKEN, Expectation.WORKS} for key in before)


def test_an_entry_with_one_expectation_is_refused() -> None:
    with pytest.raises(MatrixError, match="is expected: works"):
        swapped(NIGHT, "one")


def ended(expectation: Expectation, verdict: Verdict) -> Record:
    return changed(record(), expectation=expectation, verdict=verdict)


RED = [ended(Expectation.WORKS, Verdict.REGRESSED), ended(Expectation.BROKEN, Verdict.VANISHED)]


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (RED, True),
        ([*RED, ended(Expectation.WORKS, Verdict.UNAVAILABLE)], True),
        (RED[:1], False),
        (RED[1:], False),
        ([*RED, ended(Expectation.WORKS, Verdict.UNEXPLAINED)], False),
        ([*RED, ended(Expectation.WORKS, Verdict.HOLDS)], False),
        ([*RED, ended(Expectation.BROKEN, Verdict.NOT_REACHED)], False),
        ([], False),
    ],
)
def test_both_red_verdicts_are_required(records: list[Record], expected: bool) -> None:
    assert outcome(records)[0] is expected


def test_recorded_outcomes_are_judged_with_the_opposite_expectation() -> None:
    passed = changed(
        record(), expectation=Expectation.WORKS, verdict=Verdict.HOLDS, outcome=Outcome(OutcomeKind.PASSED)
    )
    broke = changed(record(), expectation=Expectation.BROKEN, verdict=Verdict.REPRODUCED, outcome=shown(BOTH))
    entry = replace(BOTH, id=Identifier(passed.failure))
    assert [each.verdict for each in rejudged(entry, [passed, broke])] == [Verdict.VANISHED, Verdict.REGRESSED]
    assert outcome(rejudged(entry, [passed, broke]))[0]
    assert rejudged(BOTH, [passed, broke]) == []
