"""Texts about a record: headline, reason, exceptions, labels, sort keys."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from matrix.ground.verdicts.outcome import Outcome, OutcomeKind, Raised
from matrix.ground.verdicts.record import Verdict
from matrix.show.words import (
    MEANING,
    WORST_FIRST,
    exception,
    headline,
    in_words,
    is_red,
    label,
    night_in_words,
    outcome_text,
    render_chain,
    silent,
    verdict_reason,
    verdicts_text,
    version_order,
    worst,
)
from tests.unit.ground.verdicts.test_trend import nights
from tests.unit.show.samples import ASSERTION, MCORES, TORCHES, cell, record

VERDICTS = st.lists(st.sampled_from(list(Verdict)))


def test_every_verdict_has_an_urgency_and_a_meaning() -> None:
    assert set(WORST_FIRST) == set(MEANING) == set(Verdict)


@given(VERDICTS)
def test_headline_is_green_only_for_a_complete_night(verdicts: list[Verdict]) -> None:
    """Green requires: no red case, every case reached, and at least one case that ran."""
    colours = [verdict.colour for verdict in verdicts]
    green = headline([record(verdict) for verdict in verdicts]).colour == "green"
    assert green == (
        "red" not in colours and "not-reached" not in colours and ("green" in colours or "learned" in colours)
    )


@given(VERDICTS)
def test_headline_is_red_if_any_case_is(verdicts: list[Verdict]) -> None:
    """It also counts the cases without a result."""
    records = [record(verdict) for verdict in verdicts]
    summary = headline(records)
    assert (summary.colour == "red") == any(map(is_red, records))
    unavailable, lost = verdicts.count(Verdict.UNAVAILABLE), verdicts.count(Verdict.NOT_REACHED)
    assert summary.sources == f"{len(records) - unavailable - lost} ran, {unavailable} unavailable, {lost} not reached"


@given(st.lists(st.sampled_from(list(Verdict)), min_size=1))
def test_red_verdict_wins_in_a_grid_cell(verdicts: list[Verdict]) -> None:
    records = [record(verdict) for verdict in verdicts]
    assert (worst(records).colour == "red") == any(map(is_red, records))


def test_reason_names_root_cause_and_matched_failure() -> None:
    reason = verdict_reason(record(Verdict.UNEXPLAINED, other="dud-write-item"))
    assert reason.startswith("rank 0 raised: TypeError: _write_item() missing 2 required positional arguments")
    assert reason.endswith("; matches failure dud-write-item")


def test_exception_without_message_names_its_location() -> None:
    assert exception(ASSERTION[0]) == "AssertionError at default_planner.py:389 create_default_global_save_plan"


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (Outcome(OutcomeKind.PASSED), "passed"),
        (Outcome(OutcomeKind.SIGNALED, rank=1, signal="SIGSEGV"), "rank 1 died by SIGSEGV"),
        (Outcome(OutcomeKind.EXITED, rank=0, exit_code=6), "rank 0 exited with 6"),
        (Outcome(OutcomeKind.HUNG, "no end after 120 s"), "hung: no end after 120 s"),
        (Outcome(OutcomeKind.OUT_OF_MEMORY, rank=3), "rank 3 ran out of memory"),
    ],
)
def test_outcome_as_text(outcome: Outcome, text: str) -> None:
    assert outcome_text(outcome) == text


def test_unavailable_case_shows_its_reason() -> None:
    assert verdict_reason(record(Verdict.UNAVAILABLE)) == "needs 8 GPUs; host has 0"


def test_chain_starts_at_the_root_cause() -> None:
    lines = render_chain(ASSERTION).splitlines()
    assert lines[0] == "AssertionError"
    assert lines[3].endswith("default_planner.py:389 create_default_global_save_plan")
    assert lines[5:8] == ["which led to", "", "CheckpointException: ranks:dict_keys([0])"]


def test_deep_stack_keeps_its_innermost_frames() -> None:
    frame = ASSERTION[0].frames[0]
    deep = Raised("E", "", tuple(replace(frame, line=line) for line in range(100)))
    assert "85 outer frames omitted" in render_chain([deep])
    assert ":99 save" in render_chain([deep])
    assert ":84 save" not in render_chain([deep])


def test_label_omits_axes_that_are_none() -> None:
    assert label(cell("torch-2.4.0", "0.8.0")) == "torch-2.4.0/mcore-0.8.0"
    assert (
        label(cell("ngc-24.07", "0.8.0", "1.8.0+37280ec", "535")) == "ngc-24.07/mcore-0.8.0/te-1.8.0+37280ec/driver-535"
    )


def test_versions_sort_by_pep_440_and_bases_numerically() -> None:
    assert sorted(set(MCORES), key=version_order) == list(MCORES)
    assert sorted(["torch-2.13.0", "torch-2.4.0", "host"], key=version_order) == ["host", "torch-2.4.0", "torch-2.13.0"]
    assert sorted(["0.9.0", "core_v0.9.0-3-gabc", "none", "0.9.0rc1"], key=version_order) == [
        "none", "0.9.0rc1", "0.9.0", "core_v0.9.0-3-gabc",
    ]  # fmt: skip
    assert sorted(TORCHES, key=version_order) == list(TORCHES)


@given(st.lists(st.text()))
@example(["²", "9" * 5000, "a" + "9" * 5000, "a"])
def test_any_text_can_be_sorted(texts: list[str]) -> None:
    sorted(texts, key=version_order)


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        (("a", "a"), "0 ran, 2 from the cache of a, 0 unavailable, 0 not reached"),
        (("", "a"), "1 ran, 1 from the cache of a, 0 unavailable, 0 not reached"),
        (("a", "b"), "0 ran, 2 from the cache of a and b, 0 unavailable, 0 not reached"),
        (("", ""), "2 ran, 0 unavailable, 0 not reached"),
    ],
)
def test_results_from_the_cache_are_counted(runs: tuple[str, str], words: str) -> None:
    summary = headline([replace(record(), cached_from=run) for run in runs])
    assert (summary.colour, summary.text, summary.sources) == ("green", "nothing is red in 2 cases", words)


def test_equal_neighbours_of_a_history_are_counted() -> None:
    assert verdicts_text(nights("hhRR")) == "holds x 2, regressed x 2"


def test_label_leaves_out_what_is_absent() -> None:
    """Megatron-LM, too: the cell's id keeps it."""
    assert label(cell(mcore="none")) == "torch-2.4.0"
    assert label(cell(te="1.9.0")) == "torch-2.4.0/mcore-0.8.0/te-1.9.0"


@pytest.mark.parametrize(
    ("date", "words"), [("2026-11-05", "5 November 2026"), ("2025-09", "September 2025"), ("2024", "2024"), ("", "")]
)
def test_dates_are_words(date: str, words: str) -> None:
    assert in_words(date) == words


@pytest.mark.parametrize(
    ("run", "words"),
    [("20261123T134958668206Z-night", "23 November 2026"), ("2026-01-29-night", "29 January 2026"), ("a", "a")],
)
def test_night_is_a_date_in_words(run: str, words: str) -> None:
    assert night_in_words(run) == words


def test_reasons_of_many_releases_are_one() -> None:
    """The releases are in order of their versions; other reasons stay as they are."""
    why = "needs a compiled Transformer Engine {}; host has 2.20.2"
    reasons = [
        "needs a compiled Transformer Engine; host has 2.20.2",
        *map(why.format, ("2.10.0", "1.9.0", "2.9.0")),
        why.format("any"),
        "needs driver 470.1; has 580.2",
    ]
    records = [record(Verdict.UNAVAILABLE) for _ in reasons]
    records = [
        replace(one, outcome=replace(one.outcome, reason=text)) for one, text in zip(records, reasons, strict=True)
    ]
    assert [(reason, len(members)) for (_, reason), members in silent(records)] == [
        ("needs a compiled Transformer Engine 1.9.0 - 2.10.0 (3 releases); host has 2.20.2", 4),
        ("needs a compiled Transformer Engine any; host has 2.20.2", 1),
        ("needs driver 470.1; has 580.2", 1),
    ]
