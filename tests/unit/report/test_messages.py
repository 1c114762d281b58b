"""The night in Markdown: one row per cause; no log text is markup or a mention."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.report.changes import Changes, changes
from matrix.report.escaping import block, code
from matrix.report.messages import issue, job_summary, webhook
from matrix.store.stored_run import Night
from matrix.store.trend import PastResult
from matrix.verdicts.outcome import Outcome, OutcomeKind, Raised
from matrix.verdicts.record import Record, Verdict
from tests.unit.report.samples import cell, night, record

NOTHING_BEFORE = Changes("", (), ())
HOSTILE = "<img src=x> @everyone [x](http://x) | ``` #1 <!channel> HF_TOKEN=hunter2-secret"


def of(*records: Record) -> Night:
    return Night("2026-01-31", records)


def seventy(verdict: Verdict = Verdict.REGRESSED) -> list[Record]:
    return [record(verdict, where=cell(f"torch-2.{n}.0")) for n in range(70)]


def test_cases_that_fail_alike_are_one_row() -> None:
    text = issue(of(*seventy()), NOTHING_BEFORE)

    assert text.startswith("# Megatrix: newly red in 70 cases: dud-assertion regressed\n")
    assert [row for row in text.split("\n") if row.startswith("| regressed")] == [
        "| regressed | `dud-assertion` | 70 | `rank 0 raised: AssertionError at default_planner.py:389 "
        "create_default_global_save_plan; signature save-assertion` | `torch-2.0.0/mcore-0.8.0 tp2 cpu` |"
    ]
    assert seventy()[0].reproduce in text


def test_one_signature_is_one_row_for_any_rank() -> None:
    ranks = [replace(one, outcome=replace(one.outcome, rank=n % 8)) for n, one in enumerate(seventy())]
    unknown = [replace(one, signature=None) for one in ranks]

    assert issue(of(*ranks), NOTHING_BEFORE).count("\n| regressed") == 1
    assert issue(of(*unknown), NOTHING_BEFORE).count("\n| regressed") == 8


def test_cause_of_most_cases_comes_first() -> None:
    few = record(Verdict.UNEXPLAINED, case="pp2")
    rows = [
        line for line in job_summary(of(few, *seventy()), NOTHING_BEFORE).split("\n") if " `dud-assertion` " in line
    ]
    assert [row.split(" | ")[2] for row in rows] == ["70", "1"]


def test_issue_lists_only_newly_red_cases() -> None:
    old, new, green = record(Verdict.REGRESSED), record(Verdict.UNEXPLAINED, case="pp2"), record(case="world1")
    before = {
        one.key: PastResult(1, "2026-01-30", Verdict.REGRESSED if one is old else Verdict.HOLDS)
        for one in (old, new, green)
    }
    night = of(old, new, green)

    text = issue(night, changes(night.records, before))
    assert "newly red in 1 case: dud-assertion unexplained" in text
    assert "| regressed" not in text
    assert issue(of(old, green), changes((old, green), before)) == ""
    assert issue(of(green), NOTHING_BEFORE) == ""


def test_summary_has_headline_causes_and_missing_results() -> None:
    text = job_summary(of(*night()), NOTHING_BEFORE)

    assert text.startswith("## Megatrix: red\n\n15 of 134 cases are red; ")
    assert "- unavailable x 9: `needs 8 GPUs; host has 0`" in text
    assert "| holds |" in text
    assert len(text) < 2**20


def test_green_night_is_short() -> None:
    text = job_summary(of(record()), NOTHING_BEFORE)
    assert "nothing is red in 1 cases" in text
    assert "| verdict | failure |" not in text


def test_webhook_is_a_few_lines_of_text() -> None:
    payload = json.loads(webhook(of(*seventy(), record(Verdict.VANISHED, case="pp2")), NOTHING_BEFORE))

    assert list(payload) == ["text"]
    assert payload["text"].split("\n")[0] == (
        "Megatrix RED: 71 of 71 cases are red; 71 ran, 0 unavailable, 0 not reached (2026-01-31)"
    )
    assert payload["text"].count("\n") == 2


@pytest.mark.parametrize("make", [job_summary, issue])
def test_log_text_is_no_markup_and_no_mention(make: object) -> None:
    raised = Outcome(OutcomeKind.RAISED, chain=(Raised("ValueError", HOSTILE),))
    text = make(of(replace(record(Verdict.UNEXPLAINED), outcome=raised)), NOTHING_BEFORE)  # type: ignore[operator]
    bare = re.sub(r"(?ms)^(`{3,})text\n.*?^\1$", "", text)
    bare = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", bare)

    assert "hunter2" not in text
    assert not any(sign in bare for sign in ("@everyone", "<img", "[x]"))


def test_webhook_mentions_nobody() -> None:
    raised = Outcome(OutcomeKind.RAISED, chain=(Raised("ValueError", HOSTILE),))
    assert "<!channel>" not in webhook(of(replace(record(Verdict.UNEXPLAINED), outcome=raised)), NOTHING_BEFORE)


@given(st.text())
def test_code_span_is_one_line_and_closed(text: str) -> None:
    span = code(text)
    ticks = re.match("`+", span)
    assert ticks is not None
    assert "\n" not in span
    assert "|" not in span
    assert [run for run in re.findall("`+", span) if len(run) == len(ticks[0])] == [ticks[0]] * 2


@given(st.text(st.sampled_from("`a\n~"), max_size=30))
def test_code_block_is_closed_by_its_fence(text: str) -> None:
    lines = block(text).split("\n")
    fence = lines[0].removesuffix("text")
    assert lines[-1] == fence
    assert not any(line.strip("`") == "" and len(line) >= len(fence) for line in lines[1:-1])
