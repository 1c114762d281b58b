"""Claims of runs beside records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from matrix.ground.catalog.failure import Expectation, Workaround
from matrix.ground.catalog.schema import Identifier
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.ground.verdicts.record import Record, Verdict
from matrix.prove.authoring.claims import (
    claimed,
    measured,
    outcome,
    rejudged,
    supporting,
    swapped,
    unsourced,
    unsupported,
    with_reasons,
)
from matrix.prove.planning.night import night, pairwise
from tests.unit.catalogs import catalog, clause, failure, planned, shown
from tests.unit.show.samples import changed, record

BROKEN, WORKS = clause(mcore="<0.9", reason="run with 0.7.0, 0.8.0"), clause(mcore=">=0.9", reason="run with 0.9.0")
ENTRY = failure(affected=(BROKEN,), works=(WORKS,))


def ran(core: str, verdict: Verdict) -> Record:
    return replace(record(), planned=planned(catalog(ENTRY), "torch-2.4.0", core=core), verdict=verdict)


ALL = [ran("0.7.0", Verdict.REPRODUCED), ran("0.8.0", Verdict.REPRODUCED), ran("0.9.0", Verdict.HOLDS)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the guard is > 1.8.0; run with 1.8.0 and 1.9", ["1.8.0", "1.9"]),
        ("run on torch 2.13.0; 2.12 was read", ["2.13.0"]),
        ("holds with 0.8.0 on torch 2.3.1, TP=2", ["0.8.0", "2.3.1"]),
        ("run with 1.8.0+37280ec, read in 1.9.0", ["1.8.0+37280ec"]),
        ("run with 0.6.0 - 0.19.2: 5.2998 instead", ["0.6.0", "0.19.2"]),
        ("read at the tags 2.1 - 2.5; never run here", []),
        ("", []),
    ],
)
def test_versions_after_run_with_are_claimed(text: str, expected: list[str]) -> None:
    assert claimed(text) == expected


def test_claim_with_a_record_is_supported() -> None:
    assert list(unsupported(ENTRY, ALL)) == []


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_claim_without_a_record_is_reported(missing: int) -> None:
    others = [each for number, each in enumerate(ALL) if number != missing]
    (claim,) = unsupported(ENTRY, others)
    assert claim.where == ("works[0]" if missing == 2 else "affected[0]")
    assert ("0.7.0", "0.8.0", "0.9.0")[missing] in claim.what.rpartition("with")[2]


@pytest.mark.parametrize("verdict", [Verdict.UNAVAILABLE, Verdict.VANISHED, Verdict.UNEXPLAINED, Verdict.NOT_REACHED])
def test_only_the_expected_verdict_supports_a_claim(verdict: Verdict) -> None:
    assert len(list(unsupported(ENTRY, [*ALL[1:], ran("0.7.0", verdict)]))) == 1


def test_workaround_needs_a_case_that_holds() -> None:
    entry = replace(ENTRY, workaround=(Workaround("upgrade", "run with 0.8.0"),))
    assert [claim.where for claim in unsupported(entry, ALL)] == ["workaround[0]"]


def test_records_of_another_rule_support_nothing() -> None:
    assert supporting(ENTRY, Expectation.BROKEN, BROKEN, ALL) == ALL[:2]
    assert supporting(replace(ENTRY, id="other"), Expectation.BROKEN, BROKEN, ALL) == []  # type: ignore[arg-type]


def test_reasons_are_written_from_records() -> None:
    text = (
        '[[affected]]\nreason = "the guard; run with ..."\n[[works]]\nreason = "run with ..."\n[night]\nreason = "x"\n'
    )
    assert with_reasons(text, ENTRY, ALL).splitlines() == [
        "[[affected]]",
        'reason = "the guard; run with 0.7.0, 0.8.0 on torch-2.4.0"',
        "[[works]]",
        'reason = "run with 0.9.0 on torch-2.4.0"',
        "[night]",
        'reason = "x"',
    ]
    assert with_reasons(text, ENTRY, ALL[:2]).count("run with ...") == 1
    assert measured(ENTRY, []) == ""


@pytest.mark.parametrize(
    ("reason", "sourced"),
    [
        ("run with 0.8.0", True),
        ("read in validate_args of 0.15.0; the rest by arithmetic", True),
        ("read at the tags; run with 0.9.0", True),
        ("the loss alike (read in 87d9d2506a)", True),
        ("read at core_v0.5.0", True),
        ("read in NVIDIA/Megatron-LM#4374", True),
        ("read in the change", False),
        ("(read in the pull request)", False),
        ("read in 0.8.0; the guard read in its code: 0.9", False),
    ],
)
@pytest.mark.parametrize("where", ["affected", "workaround"])
def test_reading_names_a_source(reason: str, sourced: bool, where: str) -> None:
    rule = replace(BROKEN, reason=reason if where == "affected" else "")
    entry = replace(ENTRY, affected=(rule,), workaround=(Workaround("x", reason if where == "workaround" else ""),))
    assert [problem.where for problem in unsourced(entry)] == [f"{where}[0]"] * (not sourced)


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
