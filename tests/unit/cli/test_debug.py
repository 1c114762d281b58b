"""`megatrix debug`: the command that it starts, in the interpreter of the cell."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from matrix.cli import debug
from matrix.cli.main import main
from matrix.prove.execution.engine import environment_folder
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


def test_case_runs_under_pdb_in_its_environment(started: list[tuple[list[str], dict[str, str]]]) -> None:
    python = environment_folder("torch-2.4.0") / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
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


def test_missing_environment_is_made_by_tox(
    started: list[tuple[list[str], dict[str, str]]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("matrix.cli.debug.tox_command", lambda environ: ["tox"])  # absent in the oldest environment
    assert main(["debug", KEY]) == 2
    ((command, _),) = started
    assert command[-1] == "torch-2.4.0"
    assert "no interpreter for the case" in capsys.readouterr().err


def test_unknown_case_starts_nothing(started: list[tuple[list[str], dict[str, str]]]) -> None:
    assert main(["debug", f"{CELL} save-breaks tp3 cpu"]) == 2
    assert started == []
