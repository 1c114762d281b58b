"""The process that forks for each run of a base."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from matrix.execution import warm_pytest
from matrix.execution.warm_pytest import WarmPytest
from matrix.store import stored_run
from tests.unit.processes import ended

NOTHING_RAN = 5  # pytest's status without a test
# A stand-in for the process: it runs nothing, and ends at the first request.
GONE = "import sys; sys.stdin.readline()"
# One that a Ctrl-C of its owner interrupts.
SLOW = "import os, signal, sys, time; sys.stdin.readline(); os.kill(os.getppid(), signal.SIGINT); time.sleep(60)"


def variables(folder: Path) -> dict[str, str]:
    """Return the variables of a run without a case."""
    folder.mkdir()
    stored_run.write_plan(folder, [])
    return {"PATH": os.environ["PATH"], "MEGATRIX_RUN": str(folder)}


def test_runs_of_one_process_have_own_logs(tmp_path: Path) -> None:
    environments = [variables(tmp_path / name) for name in ("a", "b")]
    logs = [tmp_path / "one", tmp_path / "two"]
    warm = WarmPytest(Path(sys.executable), environments[0], logs[0])

    statuses = [warm.run([], environ, log) for environ, log in zip(environments, logs, strict=True)]

    assert statuses == [NOTHING_RAN, NOTHING_RAN]
    assert [log.read_text().count("no tests ran") for log in logs] == [1, 1]
    assert not warm.ended


def test_process_ends_with_its_owner_object(tmp_path: Path) -> None:
    warm = WarmPytest(Path(sys.executable), variables(tmp_path / "a"), tmp_path / "log")
    pid = warm.pid
    del warm
    assert ended(pid)


@pytest.mark.parametrize(("code", "status"), [(GONE, 1), (f"{GONE}; sys.exit(3)", 3), ("pass", 1)])
def test_lost_process_is_a_failed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, status: int) -> None:
    """The engine starts another one for the next run."""
    monkeypatch.setattr(warm_pytest, "python_module", lambda python, *_, **__: [python, "-c", code])
    warm = WarmPytest(Path(sys.executable), {}, tmp_path / "log")
    assert warm.run([], {}, tmp_path / "log") == status
    assert warm.ended


def test_unread_request_is_dropped_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffer of the pipe still has it when the pipe is closed; a finalizer that raises is a warning."""
    monkeypatch.setattr(warm_pytest, "python_module", lambda python, *_, **__: [python, "-c", "pass"])
    warm = WarmPytest(Path(sys.executable), {}, tmp_path / "log")
    warm._process.wait()
    assert warm.run([], {}, tmp_path / "log") == 1
    warm._end()


def test_ctrl_c_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_pytest, "python_module", lambda python, *_, **__: [python, "-c", SLOW])
    warm = WarmPytest(Path(sys.executable), {}, tmp_path / "log")
    with pytest.raises(KeyboardInterrupt):
        warm.run([], {}, tmp_path / "log")
    assert warm.ended
