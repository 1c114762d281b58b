"""The page of one cell."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import replace

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.stack import GPUS, SM
from matrix.ground.verdicts.record import Record, Verdict
from matrix.ground.verdicts.trend import PastResult, Pasts
from matrix.show.failure_page import cell_page
from tests.unit.catalogs import catalog
from tests.unit.ground.verdicts.test_trend import nights
from tests.unit.show.samples import LOG, changed, record
from tests.unit.show.test_failure_page import ENTRY


def page(records: Sequence[Record], pasts: Pasts | None = None, link: str = "") -> str:
    return cell_page("one", records, catalog(ENTRY), pasts or {}, lambda log: (log, link))


def shown(*records: Record, pasts: Pasts | None = None) -> str:
    """The page's text, tags taken out."""
    text = re.sub(r"<(style|script)>.*?</\1>|<[^>]+>", " ", page(records, pasts), flags=re.DOTALL)
    return " ".join(html.unescape(text).split())


def test_red_cell_shows_reason_command_and_packages() -> None:
    red = record(
        Verdict.REGRESSED,
        resolved={"torch": "2.4.0", "python": "3.10.14", "image": "nvcr.io/x@sha256:ab", "host": "x86_64"},
    )
    text = shown(red)

    assert "regressed : dud-assertion tp2 cpu fails with this failure's signature, but was expected to pass" in text
    assert red.reproduce in text
    assert "image nvcr.io/x@sha256:ab host x86_64 Python 3.10.14 resolved torch 2.4.0" in text
    assert "create_default_global_save_plan" in text
    assert "0 exit code 1 1.1 s runs/a/logs/rank-0.log 1 exit code 1, stopped by the supervisor" in text
    assert "megatrix check torch-2.4.0/mcore-0.8.0/te-none/driver-none" in text
    assert "broken dud-assertion mcore <0.9: the writer saves twice" in text


def test_host_driver_and_user_mode_driver_are_shown() -> None:
    drivers = {"host driver": "470.161.03", "user-mode driver": "555.42.06 (compat package of the image)"}
    text = shown(record(level=Level.GPU, resolved={"torch": "2.4.0", **drivers}))
    assert "host driver 470.161.03 user-mode driver 555.42.06 (compat package of the image) resolved" in text


def test_reported_hardware_is_shown() -> None:
    red = record(Verdict.UNAVAILABLE)
    text = shown(changed(red, cell=red.cell.with_({SM: "8.0", GPUS: "8"})))
    assert "compute capability 8.0 GPUs 8" in text


def test_most_urgent_case_comes_first() -> None:
    text = shown(record(), record(Verdict.REGRESSED, case="pp2"), record(Verdict.UNAVAILABLE, case="world1"))
    assert text.index("regressed :") < text.index("unavailable :") < text.index("holds :")


def test_existing_log_is_linked() -> None:
    assert '<a href="../runs/a/rank-0.log">runs/a/logs/rank-0.log</a>' in page(
        [record(Verdict.REGRESSED)], link="../runs/a/rank-0.log"
    )
    assert "runs/a/logs/rank-0.log</a>" not in page([record(Verdict.REGRESSED)])


def test_history_separates_flakes_from_changes() -> None:
    one = record()
    verdicts = [(Verdict.HOLDS, "a"), (Verdict.REGRESSED, "a"), (Verdict.HOLDS, "b")]
    pasts = {
        one.key: [
            PastResult(n, f"night-{n}", verdict, 1.0, with_, False) for n, (verdict, with_) in enumerate(verdicts)
        ]
    }
    text = shown(one, pasts=pasts)

    assert "the last 3 nights" in text
    assert "First ran in night-0, last in night-2" in text
    assert "night-1: holds → regressed , its inputs did not change: a flake" in text
    assert "night-2: regressed → holds , its inputs changed" in text
    assert "Flakes: 1 of 1 runs" in text
    assert 'aria-label="holds x 1, regressed x 1, holds x 1"' in page([one], pasts)


def test_first_night_has_no_history() -> None:
    assert "This is the first night." in shown(record())


def test_each_night_has_a_bar() -> None:
    """Height and colour both show the verdict; a cached night is marked."""
    one = record()
    bars = re.findall(
        r'<rect class="(\w+)" y="\d+" width="7" height="(\d+)"( opacity=".45")? .*?x="(\d+)"><title>(.*?)<',
        page([one], {one.key: nights("hhRuc")}),
    )
    assert [(verdict, height, bool(cached)) for verdict, height, cached, _, _ in bars] == [
        ("holds", "10", False), ("holds", "10", False), ("regressed", "22", False), ("unavailable", "3", False),
        ("holds", "10", True),
    ]  # fmt: skip
    assert [(x, text) for *_, x, text in bars] == [
        ("0", "night-0: holds"), ("9", "night-1: holds"), ("18", "night-2: regressed"), ("27", "night-3: unavailable"),
        ("36", "night-4: holds, cached"),
    ]  # fmt: skip


def test_log_text_is_escaped_and_masked() -> None:
    red = record(Verdict.UNEXPLAINED)
    text = page([replace(red, outcome=replace(red.outcome, evidence=LOG, reason="<script>x</script>"), notes=("<b>",))])

    assert "hunter2" not in text
    assert "<script>alert" not in text
    assert "<b>" not in text.replace("<b>", "", 0).split("<main>")[1].split("</main>")[0]
