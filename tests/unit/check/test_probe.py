"""The edge: what this machine and an interpreter answer, also when they do not."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from matrix.check import probe


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_this_interpreter_answers_for_itself() -> None:
    told = probe.interview(sys.executable)
    assert (told.python, told.problems) == (platform.python_version(), ())


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("kill -SEGV $$", "left with status -11: nothing"),
        ("echo Traceback >&2; echo SyntaxError >&2; exit 1", "left with status 1: SyntaxError"),
        ("echo not json", "left with status 0: nothing"),
        ("echo '{}'", "left with status 0: nothing"),
    ],
)
def test_an_interpreter_that_crashes_or_talks_nonsense_is_an_answer(tmp_path: Path, body: str, said: str) -> None:
    (problem,) = probe.interview(script(tmp_path / "python", body)).problems
    assert problem.endswith(said)


def test_an_interpreter_that_is_not_there_or_hangs_is_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (missing,) = probe.interview(str(tmp_path / "python")).problems
    assert "can't be started" in missing
    monkeypatch.setattr(probe, "PATIENCE_S", 0.2)
    (slow,) = probe.interview(script(tmp_path / "slow", "exec sleep 60")).problems
    assert "did not answer" in slow


def test_mpirun_is_the_one_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert probe.mpi() is None
    path = script(tmp_path / "mpirun", "echo 'mpirun (Open MPI) 5.0.11'; echo; echo 'Report bugs to'")
    found = probe.mpi()
    assert found is not None
    assert (found.path, found.version) == (path, "mpirun (Open MPI) 5.0.11")


def test_of_the_environment_only_what_decides_is_kept() -> None:
    environ = {"WORLD_SIZE": "8", "UB_SKIPMC": "1", "TOKEN": "secret", "PMIX_SERVER_URI": "secret"}
    facts = probe.look(sys.executable, environ)
    assert facts.environ == {"WORLD_SIZE": "8", "UB_SKIPMC": "1"}
    assert facts.memory
    assert facts.available
    assert "secret" not in repr(facts)
