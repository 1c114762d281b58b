"""The installation of a pytest process: its base, its Python, its cases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from matrix.ground.catalog.stack import PYTHON, TORCH
from matrix.ground.errors import MatrixError
from matrix.prove.execution import installation
from matrix.prove.execution.case_context import Options
from matrix.prove.execution.session import Session
from matrix.read.machine import installed as environments
from tests.unit.catalogs import catalog, failure
from tests.unit.prove.execution.sessions import BASE, CASE


def test_interpreter_without_a_base_is_the_host(folder: Path) -> None:
    current = Session(Options(), folder)
    assert ("host", {"host"}, {"2.4.0"}) == (
        current.installation.base,
        {item.cell.base for item in current.planned},
        {item.cell.stack[TORCH] for item in current.planned},
    )


def test_environment_of_a_user_is_a_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is that of this process, under an id of its own."""
    monkeypatch.setattr(environments, "current", lambda: BASE)
    current = installation.Installation.current("host-1a2b")

    assert (current.base, current.catalog.cell("host-1a2b").stack[TORCH]) == ("host-1a2b", "2.4.0")


def test_unknown_base_raises(folder: Path) -> None:
    with pytest.raises(MatrixError, match="did you mean torch-2"):
        Session(Options("torch-2.4"), folder)


def test_cells_have_the_python_of_their_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base prefers 3.10; the key of a case, and so its history, stays the same."""
    monkeypatch.setattr(environments, "current", lambda: replace(BASE, python="3.12.1"))

    for options in (Options("torch-2.4.0", folder), Options("torch-2.4.0", select="mcore==0.8.0")):
        (found,) = Session(options, folder).planned
        assert (CASE.cell.stack[PYTHON], found.cell.stack[PYTHON], found.key) == ("3.10", "3.12", CASE.key)


def test_environment_without_a_case_raises(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "load", lambda: catalog(failure(case=())))
    with pytest.raises(MatrixError, match="the catalog has no case for this environment"):
        _ = Session(Options("torch-2.4.0"), folder).planned
