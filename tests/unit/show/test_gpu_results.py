"""The page of a run at level gpu: machine, packages, verdicts, and a name that sorts by date."""

from __future__ import annotations

from dataclasses import replace

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.machine import Gpu
from matrix.ground.verdicts.record import Verdict
from matrix.prove.store.stored_run import Night
from matrix.show import run_summary
from tests.unit.show.samples import record

GPUS = tuple(Gpu("NVIDIA H100 80GB HBM3", "9.0", multicast=True, uuid=f"GPU-{place}") for place in range(8))
FACTS = {"GPUs": "2 of 8 x NVIDIA H100 80GB HBM3, SM 9.0", "torch": "2.4.0", "NCCL": "2.20.5", "backend": "nccl"}
RAN = record(Verdict.REPRODUCED, level=Level.GPU)
RAN = replace(RAN, resolved=FACTS, outcome=replace(RAN.outcome, seconds=120.0))
MISSING = record(Verdict.UNAVAILABLE, failure="other", level=Level.GPU)
NIGHT = Night("20260131-night", (RAN, MISSING), "2026-01-31T22:00:00+00:00", "2026-01-31T22:01:00+00:00")


def test_name_has_date_and_gpus() -> None:
    assert run_summary.name(NIGHT, GPUS) == "2026-01-31-8x-nvidia-h100-80gb-hbm3.md"


def test_page_has_machine_packages_and_counts() -> None:
    page = run_summary.page(NIGHT, GPUS, "550.54.14").splitlines()
    assert page[:5] == [
        "# Level gpu, 2026-01-31",
        "",
        "- GPUs: 8 x NVIDIA H100 80GB HBM3, SM 9.0, multicast",
        "- kernel driver: 550.54.14",
        "- 1 of 2 cases ran in 1 minutes; 4 GPU-minutes, 50% of those of the machine",
    ]
    assert f"| `{RAN.cell.base}` | 1 | 2.4.0 | - | 2.20.5 | - | - | nccl | - | - | - | - |" in page
    counts = {line.split("|")[1].strip(): line for line in page if line.startswith(f"| `{RAN.failure}` |")}
    assert counts[f"`{RAN.failure}`"].count(" 1 ") == 1
    assert "| unavailable | 1 |" in "\n".join(page)


def test_run_without_results_has_a_page() -> None:
    page = run_summary.page(replace(NIGHT, records=(MISSING,)), GPUS, "550.54.14")
    assert "- 0 of 1 cases ran in 0 minutes; 0 GPU-minutes\n" in page
