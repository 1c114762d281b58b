"""The page of one failure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from matrix.catalog.failure import Claim, Failure, Level, Workaround
from matrix.report.failure_page import failure_page
from matrix.store.night import Night
from matrix.store.trend import Past, Pasts
from matrix.verdicts.record import Record, Verdict
from tests.unit.catalogs import catalog, clause, failure
from tests.unit.report.samples import cell, record

ENTRY = failure(
    id="dud-assertion",
    references=("NVIDIA/Megatron-LM#1003", "a talk"),
    affected=(clause(mcore="<0.9", reason="the writer saves twice"),),
    works=(clause(mcore=">=0.9"), clause(cases=["way-round"], reason="the way round")),
    claim=Claim("a write-up", "names must be unique", "the coordinator is <None>"),
    workaround=(Workaround("zarr", "saved and loaded"), Workaround("wait")),
)
RECORDS = (
    record(Verdict.REPRODUCED, where=cell(mcore="0.8.0")),
    record(Verdict.HOLDS, where=cell(mcore="0.8.0"), case="way-round"),
    record(Verdict.HOLDS, where=cell(mcore="0.9.0")),
    record(Verdict.HOLDS, where=cell(mcore="0.9.0"), failure="another"),
)


def shown(entry: Failure = ENTRY, pasts: Pasts | None = None, records: Sequence[Record] = RECORDS) -> str:
    """The page's text, tags taken out."""
    levels = {"dud-assertion": frozenset({Level.CPU})}
    page = failure_page(entry, catalog(entry), Night("one", tuple(records)), levels, pasts or {})
    return " ".join(re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL).split())


def test_a_claim_stands_beside_what_was_measured_and_what_this_run_saw() -> None:
    assert "A write-up claims names must be unique a write-up" in shown()
    assert "Measured the coordinator is &lt;None&gt; This run: reproduced 1 cpu , holds 2 cpu" in shown()


def test_each_rule_has_the_verdicts_of_the_cases_that_fall_under_it() -> None:
    assert "broken mcore &lt;0.9 the writer saves twice reproduced 1 cpu" in shown()
    assert "works mcore &gt;=0.9 by hand holds 1 cpu" in shown()
    assert "works everything in case way-round the way round holds 1 cpu" in shown()


def test_a_case_of_which_the_catalog_says_nothing_is_there_too() -> None:
    assert "unknown no rule learned 1 cpu" in shown(replace(ENTRY, affected=()), records=[record(Verdict.LEARNED)])


def test_a_way_round_says_whether_it_was_verified() -> None:
    assert "zarr (saved and loaded)" in shown()
    assert "wait (not verified here)" in shown()


def test_a_reference_to_a_thread_is_a_link() -> None:
    page = failure_page(ENTRY, catalog(ENTRY), Night("one", ()), {}, {})
    assert '<a href="https://github.com/NVIDIA/Megatron-LM/issues/1003">NVIDIA/Megatron-LM#1003</a>, a talk' in page
    assert "Not in this run." in page


def test_a_cell_links_to_its_evidence_on_the_first_page() -> None:
    page = failure_page(ENTRY, catalog(ENTRY), Night("one", RECORDS), {}, {})
    assert 'href="../index.html#case-1"' in page
    assert "case-4" not in page


def test_its_nights_tell_when_it_was_seen_and_keep_flakes_apart() -> None:
    broken, works = RECORDS[0], RECORDS[2]
    verdicts = [Verdict.HOLDS, Verdict.REGRESSED, Verdict.HOLDS]
    pasts = {
        broken.key: [Past(n, f"night-{n}", verdict, 1.0, "same", False) for n, verdict in enumerate(verdicts, start=9)],
        works.key: [Past(n, f"night-{n}", Verdict.HOLDS, 1.0, "same", False) for n in (9, 10, 11)],
    }
    said = shown(pasts=pasts)
    assert "In the last 3 nights: seen first in night-10, last in night-10." in said
    assert "Flakes: 2 of 4 runs with nothing changed came out otherwise (50%)." in said
    assert "2 of 3 cases never changed their colour." in said
