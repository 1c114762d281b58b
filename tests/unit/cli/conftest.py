"""Fixtures of commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.cli import places
from matrix.ground.catalog import loading
from matrix.prove.provision import host
from tests.unit.cli.small_night import KNOWN
from tests.unit.engines import HOST, FakeEngine


@pytest.fixture
def small_cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handlers: None) -> None:
    """Set the small catalog, a host without GPUs and an output folder of this test."""
    monkeypatch.setattr(loading, "load", lambda: KNOWN)
    monkeypatch.setattr(host, "look", lambda: HOST)
    monkeypatch.setenv("MEGATRIX_OUT", str(tmp_path / "out"))
    monkeypatch.setenv("BASES_OF_TESTS", str(tmp_path / "bases"))
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """A fake engine in place of the local one; a test may change its outcomes."""
    fake = FakeEngine(KNOWN)
    monkeypatch.setattr(places, "LocalEngine", lambda *_, **__: fake)
    return fake
