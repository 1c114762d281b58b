"""A fixed share of the hostile inputs (tests/hostile), and the runner that counts the answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.cli.main import main
from tests.hostile import campaign
from tests.hostile.campaign import TRACEBACK, answer, answers, drawn, table, true_run
from tests.hostile.inputs import Hostile, kinds

TRIES = 16  # one of each kind, in half a second each


def test_share_of_hostile_inputs_is_answered(tmp_path: Path) -> None:
    inputs = drawn(TRIES, 0, true_run(tmp_path / "run"))
    results = answers(inputs, tmp_path / "kept", 120)

    assert len(results) >= TRIES
    assert [(result.wrong, result.hostile.words, result.errors) for result in results if result.wrong] == []


def test_same_seed_makes_the_same_inputs(tmp_path: Path) -> None:
    run = true_run(tmp_path)
    assert drawn(32, 5, run) == drawn(32, 5, run)
    assert {hostile.kind.partition(":")[0] for hostile in drawn(32, 5, run)} == set(kinds(run))


def raising(words: list[str]) -> int:
    raise KeyError(words[0])


def waiting(words: list[str]) -> int:
    while True:
        pass


def executing(words: list[str]) -> int:
    Path("EXECUTED").touch()
    return 0


@pytest.mark.parametrize(
    ("command", "status", "wrong"),
    [
        (main, 2, ""),
        (raising, TRACEBACK, "traceback"),
        (waiting, -99, "hang"),
        (executing, 0, "executed"),
        (lambda words: 3, 3, "status"),
    ],
)
def test_wrong_answer_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: object, status: int, wrong: str
) -> None:
    monkeypatch.setattr(campaign, "megatrix", command)

    result = answer(Hostile("log", {"a": "fifo"}, ("match", "{folder}/a")), tmp_path, 60 if wrong != "hang" else 0.1)

    assert (result.status, result.wrong) == (status, wrong)
    assert "| log | 1 | " + ("1" if not wrong else "0") in table([result])
