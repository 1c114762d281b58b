"""`megatrix check CELL`: a cell as text and as JSON."""

from __future__ import annotations

import pytest

from matrix.cli.main import main
from matrix.ground.catalog import loading
from matrix.ground.catalog.machine import PythonEnvironment
from matrix.prove.provision import host
from matrix.read.machine import installed
from tests.schemas import items_of
from tests.unit.catalogs import catalog, clause, failure
from tests.unit.engines import HOST

CELL = "torch-2.4.0/mcore-0.8.0/te-none/driver-none"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a catalog of one failure, and a host without GPUs."""
    entry = failure("save-breaks", affected=(clause(mcore="<0.9"),), works=(clause(mcore=">=0.9"),))
    monkeypatch.setattr(loading, "load", lambda: catalog(entry))
    monkeypatch.setattr(host, "look", lambda: HOST)


@pytest.mark.parametrize(("mcore", "expected", "status"), [("0.8.0", "broken", 1), ("0.9.0", "works", 0)])
def test_text_and_json_state_one_expectation(
    mcore: str, expected: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = CELL.replace("0.8.0", mcore)
    assert main(["check", cell]) == status
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], f"    expected: {expected}" in lines) == (cell, True)
    assert main(["check", cell, "--json"]) == status
    (explained,) = items_of(capsys.readouterr().out, "cell")
    assert (explained["cell"], explained["failures"][0]["expectation"]) == (cell, expected)


def test_cell_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "torch-2.4.0/mcore-x/te-none/driver-none"]) == 2
    assert "not a version of megatron-core" in capsys.readouterr().err


def test_cell_takes_no_option_of_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", CELL, "--upgrade", "te"]) == 2
    assert "a cell is a stack alone\n  got:      --upgrade\n" in capsys.readouterr().err


def test_cell_of_this_environment_has_its_cases(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = PythonEnvironment(python="3.10.4", packages={"torch": "2.4.0"})
    monkeypatch.setattr(installed, "current", lambda: environment)
    assert main(["check", "host/mcore-0.8.0/te-none/driver-none"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "  base: wheels, torch 2.4.0, Python 3.10; stands for no image" in lines
    assert "    here:     tp2 at level cpu (runs)" in lines
