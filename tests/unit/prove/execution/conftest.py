"""Fixtures of sessions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from matrix.prove.execution import installation, interrupt
from matrix.prove.execution.case_context import CaseContexts
from matrix.prove.store import stored_run
from matrix.read.machine import installed as environments
from tests.unit.catalogs import plan_entry, planned
from tests.unit.prove.execution.image_runs import FakePodman, FakeProcess, ImageRun, Make
from tests.unit.prove.execution.sessions import BASE, CASE, KNOWN


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a run with two cases, one of them on another base, and set the catalog of the session."""
    monkeypatch.setattr(interrupt, "once", lambda: None)
    monkeypatch.setattr(installation, "load", lambda: KNOWN)
    monkeypatch.setattr(environments, "current", lambda: BASE)
    other = planned(KNOWN, base="torch-2.3.1")
    stored_run.write_plan(tmp_path / "run", [plan_entry(CASE), plan_entry(other)])
    return tmp_path / "run"


@pytest.fixture
def no_overlays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Replace overlays by none, and put locks in a folder of the test."""
    monkeypatch.setattr(CaseContexts, "_overlays_of", lambda *_: ())
    monkeypatch.setenv("MEGATRIX_GPU_LOCKS", str(tmp_path / "locks"))


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a function that makes runs from podman, the end of the container and its output."""

    def made(
        podman: FakePodman | None = None,
        *,
        code: int = 0,
        printed: str = "",
        waits: Sequence[Any] = (),
        workers: int = 1,
    ) -> ImageRun:
        return ImageRun(tmp_path, podman or FakePodman(), FakeProcess(code, waits), printed, workers)

    return made
