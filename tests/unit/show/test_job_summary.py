"""The night in Markdown: one row per cause; no log text is markup or a mention."""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.verdicts.outcome import Outcome, OutcomeKind, Raised
from matrix.ground.verdicts.record import Record, Verdict
from matrix.ground.verdicts.trend import PastResult
from matrix.prove.store.stored_run import Night
from matrix.show.run_summary import Changes, changes, job_summary
from matrix.show.terminal import block, code
from tests.unit.show.samples import cell, night, record

NOTHING_BEFORE = Changes("", (), ())
HOSTILE = "<img src=x> @everyone [x](http://x) | ``` #1 <!channel> HF_TOKEN=hunter2-secret"


def of(*records: Record) -> Night:
    return Night("2026-01-31", records)


def seventy(verdict: Verdict = Verdict.REGRESSED) -> list[Record]:
    return [record(verdict, where=cell(f"torch-2.{n}.0")) for n in range(70)]


def causes_in(text: str) -> list[str]:
    return [line for line in text.split("\n") if " `dud-assertion` " in line]


def test_cases_that_fail_alike_are_one_row() -> None:
    assert causes_in(job_summary(of(*seventy()), NOTHING_BEFORE)) == [
        "| regressed | `dud-assertion` | 70 | `rank 0 raised: AssertionError at default_planner.py:389 "
        "create_default_global_save_plan; signature save-assertion` | `torch-2.0.0/mcore-0.8.0 tp2 cpu` |"
    ]


def test_one_signature_is_one_row_for_any_rank() -> None:
    ranks = [replace(one, outcome=replace(one.outcome, rank=n % 8)) for n, one in enumerate(seventy())]
    unknown = [replace(one, signature=None) for one in ranks]
    assert [len(causes_in(job_summary(of(*reds), NOTHING_BEFORE))) for reds in (ranks, unknown)] == [1, 8]


def test_newly_red_cause_comes_first() -> None:
    old, new = seventy(), record(Verdict.UNEXPLAINED, case="pp2")
    before = {one.key: PastResult(1, "2026-01-30", Verdict.REGRESSED) for one in old}
    before[new.key] = PastResult(1, "2026-01-30", Verdict.HOLDS)
    rows = causes_in(job_summary(of(*old, new), changes((*old, new), before)))
    assert [row.split(" | ")[2] for row in rows] == ["1", "70"]


def test_cause_of_most_cases_comes_first() -> None:
    few = record(Verdict.UNEXPLAINED, case="pp2")
    rows = causes_in(job_summary(of(few, *seventy()), NOTHING_BEFORE))
    assert [row.split(" | ")[2] for row in rows] == ["70", "1"]


def test_summary_has_headline_causes_and_missing_results() -> None:
    text = job_summary(of(*night()), NOTHING_BEFORE)

    assert text.startswith("## Megatrix: red\n\n15 of 134 cases are red; ")
    assert "- unavailable x 9: `needs 8 GPUs; host has 0`" in text
    assert "| holds |" in text
    assert len(text) < 2**20


def test_green_night_is_short() -> None:
    text = job_summary(of(record()), NOTHING_BEFORE)
    assert "nothing is red in 1 case" in text
    assert "| verdict | failure |" not in text


def test_log_text_is_no_markup_and_no_mention() -> None:
    raised = Outcome(OutcomeKind.RAISED, chain=(Raised("ValueError", HOSTILE),))
    text = job_summary(of(replace(record(Verdict.UNEXPLAINED), outcome=raised)), NOTHING_BEFORE)
    bare = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", text)

    assert "hunter2" not in text
    assert not any(sign in bare for sign in ("@everyone", "<img", "[x]"))


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
