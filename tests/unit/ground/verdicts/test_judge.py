"""Outcome against expectation: the table of the design, and the results that must never be green."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.catalog.failure import Expectation, Masked, Signature
from matrix.ground.catalog.schema import Identifier
from matrix.ground.verdicts.judge import Judgement, judge
from matrix.ground.verdicts.outcome import Frame, Outcome, OutcomeKind, Raised
from matrix.ground.verdicts.record import Verdict
from matrix.ground.verdicts.signature_match import matched
from tests.unit.catalogs import failure, shown

THIS, OTHER = failure("this"), failure("other")
CATALOG = (THIS, OTHER)
STRANGE = Outcome(OutcomeKind.RAISED, "rank 0 raised: KeyError", 0, chain=(Raised("KeyError", "'loss'"),))
PASSED = Outcome(OutcomeKind.PASSED)
BROKEN, WORKS, UNKNOWN = Expectation


@pytest.mark.parametrize(
    ("expectation", "outcome", "judgement"),
    [
        (BROKEN, PASSED, Judgement(Verdict.VANISHED)),
        (BROKEN, shown(THIS), Judgement(Verdict.REPRODUCED, "broke")),
        (BROKEN, shown(OTHER), Judgement(Verdict.UNEXPLAINED, other="other")),
        (BROKEN, STRANGE, Judgement(Verdict.UNEXPLAINED)),
        (WORKS, PASSED, Judgement(Verdict.HOLDS)),
        (WORKS, shown(THIS), Judgement(Verdict.REGRESSED, "broke")),
        (WORKS, shown(OTHER), Judgement(Verdict.UNEXPLAINED, other="other")),
        (WORKS, STRANGE, Judgement(Verdict.UNEXPLAINED)),
        (UNKNOWN, PASSED, Judgement(Verdict.LEARNED)),
        (UNKNOWN, shown(THIS), Judgement(Verdict.LEARNED, "broke")),
        (UNKNOWN, shown(OTHER), Judgement(Verdict.UNEXPLAINED, other="other")),
        (UNKNOWN, STRANGE, Judgement(Verdict.UNEXPLAINED)),
    ],
)
def test_judge_follows_the_design_s_table(expectation: Expectation, outcome: Outcome, judgement: Judgement) -> None:
    assert judgement == judge(THIS, expectation, outcome, CATALOG)


@pytest.mark.parametrize(
    ("expectation", "verdict"),
    [(UNKNOWN, Verdict.LEARNED), (BROKEN, Verdict.UNEXPLAINED), (WORKS, Verdict.UNEXPLAINED)],
)
def test_masked_case_is_red_only_against_an_expectation(expectation: Expectation, verdict: Verdict) -> None:
    """A selected case may be masked: it ends in the failure that hides it, which is what the entry states."""
    masked = replace(THIS, masked=(Masked(Identifier("other"), "it comes first"),))
    assert judge(masked, expectation, shown(OTHER), CATALOG) == Judgement(verdict, other="other")
    assert judge(masked, expectation, STRANGE, CATALOG).verdict is Verdict.UNEXPLAINED


@pytest.mark.parametrize("expectation", list(Expectation))
@pytest.mark.parametrize(
    ("kind", "verdict"),
    [(OutcomeKind.UNAVAILABLE, Verdict.UNAVAILABLE), (OutcomeKind.NOT_REACHED, Verdict.NOT_REACHED)],
)
def test_a_case_not_run_has_its_own_verdict(expectation: Expectation, kind: OutcomeKind, verdict: Verdict) -> None:
    assert Judgement(verdict) == judge(THIS, expectation, Outcome(kind, "needs 2 GPUs; host has 0"), CATALOG)


def test_only_reproduced_and_holds_are_green() -> None:
    green = {verdict for verdict in Verdict if verdict.colour == "green"}
    red = {verdict for verdict in Verdict if verdict.colour == "red"}
    assert {Verdict.REPRODUCED, Verdict.HOLDS} == green
    assert {Verdict.VANISHED, Verdict.REGRESSED, Verdict.UNEXPLAINED} == red


WORDS = st.sampled_from(["this broke", "other broke", "TypeError", "it broke", ""])
CHAINS = st.lists(
    st.builds(
        Raised,
        st.sampled_from(["TypeError", "RuntimeError", "AssertionError"]),
        WORDS,
        st.just((Frame("/site-packages/planner.py", 1, "plan"),)),
    ),
    max_size=3,
).map(tuple)
OUTCOMES = st.builds(
    Outcome,
    kind=st.sampled_from(OutcomeKind),
    signal=st.sampled_from([None, "SIGSEGV", "SIGKILL"]),
    exit_code=st.sampled_from([None, 0, 1, 6, -11]),
    chain=CHAINS,
    evidence=WORDS,
)
ENTRY = failure(
    "this",
    signature=(
        Signature("raised", exception="TypeError", message="this broke", frame="planner.py:plan"),  # type: ignore[arg-type]
        Signature("crashed", signal="SIGSEGV", log="this broke"),  # type: ignore[arg-type]
    ),
)


def shows_entry(outcome: Outcome) -> bool:
    """Return whether one of ENTRY's two signatures matches: an independent second implementation."""
    raised = any(link.type == "TypeError" and "this broke" in link.message for link in outcome.chain)
    return raised or (outcome.signal == "SIGSEGV" and "this broke" in outcome.evidence)


@given(st.sampled_from(Expectation), OUTCOMES)
def test_reproduced_needs_this_failure_s_signature(expectation: Expectation, outcome: Outcome) -> None:
    verdict = judge(ENTRY, expectation, outcome, CATALOG).verdict
    failed = outcome.kind not in (OutcomeKind.PASSED, OutcomeKind.NOT_REACHED, OutcomeKind.UNAVAILABLE)
    assert (expectation is BROKEN and failed and shows_entry(outcome)) == (verdict is Verdict.REPRODUCED)


@given(st.sampled_from(Expectation), OUTCOMES)
def test_holds_needs_a_pass(expectation: Expectation, outcome: Outcome) -> None:
    verdict = judge(ENTRY, expectation, outcome, CATALOG).verdict
    assert (expectation is WORKS and outcome.kind is OutcomeKind.PASSED) == (verdict is Verdict.HOLDS)


@given(st.sampled_from(Expectation), OUTCOMES)
def test_green_is_exactly_the_catalog_s_expectation(expectation: Expectation, outcome: Outcome) -> None:
    passed = outcome.kind is OutcomeKind.PASSED
    agrees = {BROKEN: matched(ENTRY, outcome) is not None, WORKS: passed, UNKNOWN: False}[expectation]
    assert agrees == (judge(ENTRY, expectation, outcome, CATALOG).verdict.colour == "green")


def test_an_unexplained_verdict_never_names_its_own_failure() -> None:
    assert Judgement(Verdict.UNEXPLAINED) == judge(THIS, BROKEN, STRANGE, (THIS,))
