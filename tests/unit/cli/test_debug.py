"""`megatrix debug`: the command that it starts, in the interpreter of the cell."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from matrix.cli import debug
from matrix.cli.main import main
from matrix.ground.catalog.machine import PythonEnvironment
from matrix.prove.provision.bases import Bases
from matrix.prove.store.stored_run import StoredRun
from tests.unit.cli.small_night import CELL, KEY


@pytest.fixture
def started(small_cli: None, monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """Return the commands and variables of the processes that are started; each fails."""
    commands: list[tuple[list[str], dict[str, str]]] = []

    def run(command: list[str], *, env: dict[str, str], **_: Any) -> SimpleNamespace:
        commands.append((command, env))
        return SimpleNamespace(returncode=1)

    monkeypatch.setattr(debug, "subprocess", SimpleNamespace(run=run))
    return commands


def test_case_runs_under_pdb_in_its_environment(
    started: list[tuple[list[str], dict[str, str]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "bin" / "python"
    monkeypatch.setattr(Bases, "provide", lambda self, base: PythonEnvironment("3.10.13", path=python))
    assert main(["debug", KEY, "--rank", "1"]) == 1
    ((command, variables),) = started
    assert command[0] == str(python)
    assert command[-8:] == [
        "-q",
        "-s",
        "--pdb",
        "-p",
        "no:cacheprovider",
        "--megatrix-debug",
        "1",
        "tests/failures/save_breaks",
    ]
    assert [case.key for case in StoredRun(Path(variables["MEGATRIX_RUN"])).planned] == [KEY]


def test_unknown_case_starts_nothing(started: list[tuple[list[str], dict[str, str]]]) -> None:
    assert main(["debug", f"{CELL} save-breaks tp3 cpu"]) == 2
    assert started == []
