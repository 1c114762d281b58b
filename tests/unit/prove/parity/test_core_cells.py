"""Tests of matrix.prove.parity.core_cells."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from matrix.ground.catalog import loading
from matrix.ground.catalog.stack import MCORE
from matrix.ground.errors import MatrixError
from matrix.prove.parity import core_cells
from matrix.prove.provision.bases import Bases
from tests.unit import catalogs


@pytest.mark.parametrize("release", [release.version for release in loading.load().megatron_core])
def test_every_core_has_a_base_that_takes_it(release: str) -> None:
    catalog = loading.load()
    base = core_cells.base_of(catalog, release)
    assert catalog.excluded(catalog.cell(base.id, {MCORE: release}).stack) is None
    assert not base.variant


def test_core_without_a_base_is_an_error() -> None:
    with pytest.raises(MatrixError, match="no base of wheels"):
        core_cells.base_of(catalogs.catalog(wheels=()), "0.19.2")


def test_process_starts_with_the_overlay_and_few_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    cell = core_cells.CoreCell("0.19.2", "0.19.2", "pypi", "torch-2.15.0", tmp_path / "python", tmp_path / "overlay")
    judge = cell.judge(tmp_path / "log")
    assert judge.environment["PYTHONPATH"] == str(tmp_path / "overlay")
    assert "NCCL_DEBUG" not in judge.environment
    assert str(tmp_path / "python") in judge.command


def test_commit_has_base_and_factors_of_its_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit before 0.15.0 calls itself 0.15.0rc3, which no range ">=0.15" contains."""
    contents = SimpleNamespace(version="0.15.0rc3+dbc4129", identity="git dbc4129")
    environment = SimpleNamespace(minor="3.12", packages={}, path=tmp_path)
    monkeypatch.setattr("matrix.read.package_source.inspect", lambda source: contents)
    monkeypatch.setattr(Bases, "ready", lambda self, bases: None)
    monkeypatch.setattr(Bases, "provide", lambda self, base: environment)
    monkeypatch.setattr(
        "matrix.prove.provision.overlays.Overlays.provide", lambda self, spec: SimpleNamespace(path=tmp_path)
    )
    cell = core_cells.core_cell(loading.load(), "0.15.0", print)
    assert (cell.release, cell.base) == ("0.15.0", core_cells.base_of(loading.load(), "0.15.0").id)
    assert cell.base != core_cells.base_of(loading.load(), "0.19.2").id
