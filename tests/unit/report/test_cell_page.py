"""The page of one cell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from matrix.catalog.failure import Level
from matrix.report.cell_page import by_cell, cell_page, name_of
from matrix.store.trend import Past, Pasts
from matrix.verdicts.record import Record, Verdict
from tests.unit.catalogs import catalog
from tests.unit.report.samples import LOG, night, record
from tests.unit.report.test_failure_page import ENTRY


def page(records: Sequence[Record], pasts: Pasts | None = None, link: str = "") -> str:
    return cell_page("one", records, catalog(ENTRY), pasts or {}, lambda log: link)


def shown(*records: Record, pasts: Pasts | None = None) -> str:
    """The page's text, tags taken out."""
    return " ".join(re.sub(r"<(style|script)>.*?</\1>|<[^>]+>", " ", page(records, pasts), flags=re.DOTALL).split())


def test_a_red_cell_says_why_how_to_run_it_again_and_what_it_ran_with() -> None:
    red = record(
        Verdict.REGRESSED,
        resolved={"torch": "2.4.0", "python": "3.10.14", "image": "nvcr.io/x@sha256:ab", "host": "x86_64"},
    )
    said = shown(red)

    assert "regressed : dud-assertion tp2 cpu this failure where the catalog says it works" in said
    assert red.reproduce.replace("'", "&#x27;") in said
    assert "image nvcr.io/x@sha256:ab host x86_64 Python 3.10.14 resolved torch 2.4.0" in said
    assert "create_default_global_save_plan" in said
    assert "0 exit code 1 1.1 s runs/a/logs/rank-0.log 1 exit code 1, ended by the supervisor" in said
    assert "megatrix explain torch-2.4.0/mcore-0.8.0/te-none/driver-none" in said
    assert "broken dud-assertion mcore &lt;0.9: the writer saves twice" in said


def test_the_driver_of_the_host_and_the_one_that_the_ranks_had_are_told_apart() -> None:
    drivers = {"host driver": "470.161.03", "user-mode driver": "555.42.06 (compat package of the image)"}
    said = shown(record(level=Level.GPU, resolved={"torch": "2.4.0", **drivers}))
    assert "driver of the host 470.161.03 user-mode driver 555.42.06 (compat package of the image) resolved" in said


def test_hardware_of_a_report_is_shown() -> None:
    red = record(Verdict.UNAVAILABLE)
    said = shown(replace(red, cell=replace(red.cell, sm="8.0", gpus="8")))
    assert "compute capability 8.0 GPUs 8" in said


def test_the_worst_case_comes_first() -> None:
    said = shown(record(), record(Verdict.REGRESSED, case="pp2"), record(Verdict.UNAVAILABLE, case="world1"))
    assert said.index("regressed :") < said.index("unavailable :") < said.index("holds :")


def test_a_log_that_is_there_is_linked() -> None:
    assert '<a href="../runs/a/rank-0.log">runs/a/logs/rank-0.log</a>' in page(
        [record(Verdict.REGRESSED)], link="../runs/a/rank-0.log"
    )
    assert "runs/a/logs/rank-0.log</a>" not in page([record(Verdict.REGRESSED)])


def test_its_nights_tell_a_flake_from_a_change() -> None:
    one = record()
    verdicts = [(Verdict.HOLDS, "a"), (Verdict.REGRESSED, "a"), (Verdict.HOLDS, "b")]
    pasts = {
        one.key: [Past(n, f"night-{n}", verdict, 1.0, with_, False) for n, (verdict, with_) in enumerate(verdicts)]
    }
    said = shown(one, pasts=pasts)

    assert "the last 3 nights" in said
    assert "first run in night-0, last in night-2" in said
    assert "night-1: holds &rarr; regressed , nothing had changed: a flake" in said
    assert "night-2: regressed &rarr; holds , something it runs with had changed" in said
    assert "Flakes: 1 of 1 runs" in said


def test_a_first_night_has_no_history() -> None:
    assert "This is the first." in shown(record())


def test_every_cell_of_a_night_has_a_name_of_its_own() -> None:
    cells = by_cell(night())
    assert len({name_of(cell) for cell in cells}) == len(cells)
    assert sum(map(len, cells.values())) == len(night())


@given(st.text(min_size=1))
def test_a_name_is_one_part_of_a_path(cell: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_.-]+\.html", name_of(cell))
    assert not name_of(cell).startswith(".") or cell.startswith(".")
    assert len(name_of(cell)) < 130


def test_text_of_a_log_is_harmless_and_masked() -> None:
    red = record(Verdict.UNEXPLAINED)
    text = page([replace(red, outcome=replace(red.outcome, evidence=LOG, reason="<script>x</script>"), notes=("<b>",))])

    assert "hunter2" not in text
    assert "<script>alert" not in text
    assert "<b>" not in text.replace("<b>", "", 0).split("<main>")[1].split("</main>")[0]
