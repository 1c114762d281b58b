"""Fixtures of sessions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from matrix.execution import installation, interrupt
from matrix.execution.case_context import CaseContexts
from matrix.planning.rerun import plan_entry
from matrix.provision import installed as environments
from matrix.store import night
from tests.unit.catalogs import planned
from tests.unit.execution.sessions import BASE, CASE, KNOWN


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a run with two cases, one of them on another base, and set the catalog of the session."""
    monkeypatch.setattr(interrupt, "once", lambda: None)
    monkeypatch.setattr(installation, "load", lambda: KNOWN)
    monkeypatch.setattr(environments, "current", lambda: BASE)
    other = planned(KNOWN, base="torch-2.3.1")
    night.write_plan(tmp_path / "run", [plan_entry(CASE, os.environ), plan_entry(other, os.environ)])
    return tmp_path / "run"


@pytest.fixture
def no_overlays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Replace overlays by none, and put locks in a folder of the test."""
    monkeypatch.setattr(CaseContexts, "_overlays_of", lambda *_: ())
    monkeypatch.setenv("MEGATRIX_GPU_LOCKS", str(tmp_path / "locks"))
