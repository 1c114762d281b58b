"""The page of a run at level gpu: its machines, packages, verdicts, and a name that sorts by date."""

from __future__ import annotations

from dataclasses import replace

from matrix.ground.catalog.failure import Level
from matrix.ground.verdicts.record import MACHINE, Record, Verdict
from matrix.prove.store.stored_run import Night
from matrix.show import run_summary
from tests.unit.show.samples import record

H100, H200 = "8 x NVIDIA H100 80GB HBM3, SM 9.0; driver 550.54.14", "1 x NVIDIA H200, SM 9.0; driver 580.159.04"
FACTS = {"GPUs": "2 of 8 x NVIDIA H100 80GB HBM3, SM 9.0", "torch": "2.4.0", "NCCL": "2.20.5", "backend": "nccl"}


def ran(started: str, machine: str = H100, case: str = "tp2") -> Record:
    one = record(Verdict.REPRODUCED, level=Level.GPU, case=case)
    return replace(
        one,
        resolved={**FACTS, MACHINE: machine},
        outcome=replace(one.outcome, seconds=120.0),
        started=f"2026-01-31T{started}.000Z",
    )


RAN = ran("22:00:00")
MISSING = record(Verdict.UNAVAILABLE, failure="other", level=Level.GPU)
NIGHT = Night("20260131-night", (RAN, MISSING), "2026-01-31T22:00:00.000Z", "2026-01-31T22:01:00.000Z")


def test_name_has_date_and_gpus() -> None:
    assert run_summary.name(NIGHT) == "2026-01-31-8-x-nvidia-h100-80gb-hbm3.md"


def test_page_has_machine_packages_and_counts() -> None:
    page = run_summary.page(NIGHT).splitlines()
    assert page[:5] == [
        "# Level gpu, 2026-01-31",
        "",
        f"1. {H100}: 1 case in 2 minutes",
        "",
        "1 of 2 cases ran.",
    ]
    assert f"| `{RAN.cell.base}` | 1 | 1 | 2.4.0 | - | 2.20.5 | - | - | nccl | - | - | - | - |" in page
    counts = {line.split("|")[1].strip(): line for line in page if line.startswith(f"| `{RAN.failure}` |")}
    assert counts[f"`{RAN.failure}`"].count(" 1 ") == 2
    assert any(line.startswith("| `other` | - |") for line in page)
    assert "| unavailable | 1 |" in "\n".join(page)


def test_each_row_states_its_machine() -> None:
    """Cases that overlap, and an hour in which none ran, count by the minutes in which one ran."""
    records = (RAN, ran("22:01:00", case="b"), ran("23:00:00", H200, case="c"), ran("23:30:00", case="d"), MISSING)
    page = run_summary.page(replace(NIGHT, records=records))
    assert f"1. {H100}: 3 cases in 5 minutes\n2. {H200}: 1 case in 2 minutes\n" in page
    assert f"| `{RAN.cell.base}` | 1 | 3 |" in page
    assert f"| `{RAN.cell.base}` | 2 | 1 |" in page
    assert f"| `{RAN.failure}` | 1, 2 |" in page
    assert run_summary.name(replace(NIGHT, records=records)).endswith("-hbm3-1-x-nvidia-h200.md")


def test_run_without_results_has_a_page() -> None:
    page = run_summary.page(replace(NIGHT, records=(MISSING,)))
    assert "\n0 of 1 cases ran.\n" in page
    assert run_summary.name(replace(NIGHT, records=(MISSING,))) == "2026-01-31-nothing-ran.md"
