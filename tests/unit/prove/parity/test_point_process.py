"""Tests of matrix.prove.parity.campaigns, with small programs in place of the process in a cell."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from matrix.ground.errors import MatrixError
from matrix.kit.parity.factors import Point
from matrix.prove.parity.campaigns import PointProcess

ANSWER = """
import json, os, sys, time
for number, line in enumerate(sys.stdin):
    task = json.loads(line)
    BODY
    same = {name: task[name] for name in ("point", "seed")}
    print(json.dumps({**same, "outcome": "equal", "text": str(os.getpid())}), flush=True)
"""


def judge(tmp_path: Path, body: str = "pass", deadline: float = 45.0) -> PointProcess:
    code = ANSWER.replace("BODY", body)
    return PointProcess([sys.executable, "-c", code], dict(os.environ), tmp_path / "log", deadline)


def test_one_process_judges_all_points(tmp_path: Path) -> None:
    with judge(tmp_path) as process:
        answers = [process.judge(Point.parse("tp=2"), seed) for seed in (1, 2, 3)]
    assert {answer.outcome for answer in answers} == {"equal"}
    assert len({answer.text for answer in answers}) == 1
    assert [answer.seed for answer in answers] == [1, 2, 3]
    assert not Path(f"/proc/{answers[0].text}").exists()


def test_process_that_has_judged_all_ends_itself(tmp_path: Path) -> None:
    """It ends its ranks first."""
    ending = f"open({str(tmp_path / 'ended')!r}, 'w')\n"
    with judge(tmp_path, "pass") as process:
        process.command = [*process.command[:-1], process.command[-1] + ending]
        process.judge(Point(), 1)
    assert (tmp_path / "ended").exists()


def test_process_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matrix.prove.parity.campaigns.END_S", 0.1)
    with judge(tmp_path) as process:
        process.command = [*process.command[:-1], f"{process.command[-1]}\ntime.sleep(600)\n"]
        answer = process.judge(Point(), 1)
    assert not Path(f"/proc/{answer.text}").exists()


def test_crash_is_an_outcome_of_one_point(tmp_path: Path) -> None:
    with judge(tmp_path, "if task['seed'] == 2: os._exit(9)") as process:
        outcomes = [process.judge(Point(), seed).outcome for seed in (1, 2, 3)]
    assert outcomes == ["equal", "crashed", "equal"]


def test_hang_timeout_process_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matrix.prove.parity.campaigns.SLACK_S", 0.0)
    with judge(tmp_path, "task['seed'] == 2 and time.sleep(600)", deadline=0.2) as process:
        first = process.judge(Point(), 1)
        assert process.judge(Point(), 2).outcome == "timeout"
        assert not Path(f"/proc/{first.text}").exists()
        assert process.judge(Point(), 3).outcome == "equal"


def test_a_process_that_never_answers_is_an_error(tmp_path: Path) -> None:
    with judge(tmp_path, "sys.exit('no megatron')") as process, pytest.raises(MatrixError, match="without an answer"):
        process.judge(Point(), 1)
    assert "no megatron" in (tmp_path / "log").read_text()


def test_crashes_in_a_row_are_an_error(tmp_path: Path) -> None:
    with judge(tmp_path, "if number: os._exit(9)") as process:
        assert process.judge(Point(), 1).outcome == "equal"
        assert process.judge(Point(), 2).outcome == "crashed"
        assert process.judge(Point(), 3).outcome == "equal"
    with judge(tmp_path, "os._exit(9)") as process, pytest.raises(MatrixError):
        process.judge(Point(), 1)
