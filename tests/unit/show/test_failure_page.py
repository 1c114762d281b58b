"""The page of one failure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from matrix.ground.catalog.failure import Claim, Failure, Level, Workaround
from matrix.ground.catalog.stack import MCORE
from matrix.ground.verdicts.outcome import RankEnd
from matrix.ground.verdicts.record import Record, Verdict
from matrix.ground.verdicts.trend import PastResult, Pasts
from matrix.prove.store.stored_run import Night
from matrix.show.failure_page import failure_page
from tests.unit.catalogs import catalog, clause, failure
from tests.unit.show.samples import cell, record, stack_map

ENTRY = failure(
    id="dud-assertion",
    references=("NVIDIA/Megatron-LM#1003", "a talk"),
    affected=(clause(mcore="<0.9", reason="the writer saves twice"),),
    works=(clause(mcore=">=0.9"), clause(cases=["workaround"], reason="the workaround")),
    claim=Claim("a write-up", "names must be unique", "the coordinator is <None>"),
    workaround=(Workaround("zarr", "saved and loaded"), Workaround("wait"), Workaround("retry", "breaks", fails=True)),
)
RECORDS = (
    record(Verdict.REPRODUCED, where=cell(mcore="0.8.0")),
    record(Verdict.HOLDS, where=cell(mcore="0.8.0"), case="workaround"),
    record(Verdict.HOLDS, where=cell(mcore="0.9.0")),
    record(Verdict.HOLDS, where=cell(mcore="0.9.0"), failure="another"),
)


def shown(entry: Failure = ENTRY, pasts: Pasts | None = None, records: Sequence[Record] = RECORDS) -> str:
    """The page's text, tags taken out."""
    levels = {"dud-assertion": frozenset({Level.CPU})}
    page = failure_page(entry, stack_map(catalog(entry)), Night("one", tuple(records)), levels, pasts or {})
    return " ".join(re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL).split())


def test_claim_is_shown_beside_measurement_and_verdicts() -> None:
    assert "Claim names must be unique a write-up" in shown()
    assert "Measurement the coordinator is &lt;None&gt; This run: reproduced 1 cpu , holds 2 cpu" in shown()


def test_each_rule_shows_the_verdicts_of_its_cases() -> None:
    assert "broken mcore &lt;0.9 the writer saves twice reproduced 1 cpu" in shown()
    assert "works mcore &gt;=0.9 by hand holds 1 cpu" in shown()
    assert "works everything in case workaround the workaround holds 1 cpu" in shown()


def test_case_without_a_rule_is_shown() -> None:
    assert "unknown no rule learned 1 cpu" in shown(replace(ENTRY, affected=()), records=[record(Verdict.LEARNED)])


def test_workaround_shows_its_verification() -> None:
    assert "zarr (saved and loaded)" in shown()
    assert "wait (not verified)" in shown()


def test_refuted_workaround_is_apart() -> None:
    assert "does not help retry (breaks)" in shown()


def test_reference_to_a_thread_is_a_link() -> None:
    page = failure_page(ENTRY, stack_map(catalog(ENTRY)), Night("one", ()), {}, {})
    assert '<a href="https://github.com/NVIDIA/Megatron-LM/issues/1003">NVIDIA/Megatron-LM#1003</a>, a talk' in page
    assert "Not in this run." in page


def test_grid_cell_links_to_its_evidence() -> None:
    page = failure_page(ENTRY, stack_map(catalog(ENTRY)), Night("one", RECORDS), {}, {})
    assert 'href="../index.html#case-1"' in page
    assert "case-4" not in page


def test_history_shows_occurrences_and_flakes() -> None:
    broken, works = RECORDS[0], RECORDS[2]
    verdicts = [Verdict.HOLDS, Verdict.REGRESSED, Verdict.HOLDS]
    pasts = {
        broken.key: [
            PastResult(n, f"night-{n}", verdict, 1.0, "same", False) for n, verdict in enumerate(verdicts, start=9)
        ],
        works.key: [PastResult(n, f"night-{n}", Verdict.HOLDS, 1.0, "same", False) for n in (9, 10, 11)],
    }
    text = shown(pasts=pasts)
    assert "In the last 3 nights: first seen in night-10, last in night-10." in text
    assert "Flakes: 2 of 4 runs with nothing changed came out otherwise (50%)." in text
    assert "2 of 3 cases never changed colour." in text


def test_first_and_last_occurrence_are_apart() -> None:
    verdicts = [Verdict.HOLDS, Verdict.REGRESSED, Verdict.REPRODUCED, Verdict.HOLDS]
    past = [PastResult(n, f"night-{n}", verdict, 1.0, "same", False) for n, verdict in enumerate(verdicts)]
    assert "first seen in night-1, last in night-2." in shown(pasts={RECORDS[0].key: past})


CODE = """
from matrix.kit.svg import escape

def picture(values):
    return "".join(f"<p>{escape(case)} measured {escape(value)}</p>" for case, value in values if value)
"""


def with_chart(folder: Path) -> str:
    one = record(where=cell(), case="peak")
    one = replace(one, outcome=replace(one.outcome, ranks=(RankEnd(0, 0, returned=True, value="<b>"), RankEnd(1, 0))))
    entry = failure(one.failure, folder=folder)
    return failure_page(entry, stack_map(catalog(entry)), Night("one", (one,)), {}, {})


def test_page_shows_the_chart_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "chart.py").write_text(CODE)
    assert f"<p>peak, mcore {cell().stack[MCORE]} on {cell().base} measured &lt;b&gt;</p>" in with_chart(tmp_path)


def test_folder_without_chart_adds_nothing(tmp_path: Path) -> None:
    assert "measured &lt;b&gt;" not in with_chart(tmp_path)
