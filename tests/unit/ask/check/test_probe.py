"""The facts of this machine and of an interpreter, also of one that fails."""

from __future__ import annotations

import platform
import shlex
import sys
from pathlib import Path

import pytest

from matrix.ask.check import environment
from matrix.ground.catalog.machine import PythonEnvironment
from matrix.ground.errors import MatrixError


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_this_interpreter_is_reported() -> None:
    facts = environment.python_of(sys.executable)
    assert (facts.python, facts.problems) == (platform.python_version(), ())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("kill -SEGV $$", "exited with status -11: nothing"),
        ("echo Traceback >&2; echo SyntaxError >&2; exit 1", "exited with status 1: SyntaxError"),
        ("echo not json", "exited with status 0: nothing"),
        ("echo '{}'", "exited with status 0: nothing"),
        ("printf '[%.0s' $(seq 100000)", "exited with status 0: nothing"),
        (r"printf 'a\256b' >&2; printf '\256'", "exited with status 0: a\ufffdb"),
    ],
)
def test_a_failing_interpreter_is_reported(tmp_path: Path, body: str, message: str) -> None:
    (problem,) = environment.python_of(script(tmp_path / "python", body)).problems
    assert problem.endswith(message)


def test_package_without_a_version_is_a_problem(tmp_path: Path) -> None:
    """It is neither absent nor of a known version."""
    facts = '{"python": "3.12", "problems": [], "packages": {"torch": "not a version", "x": "1"}}'
    found = environment.python_of(script(tmp_path / "python", f"echo {shlex.quote(facts)}"))
    assert (found.packages, found.problems[0][-21:]) == ({}, "torch 'not a version'")


@pytest.mark.parametrize(
    "facts",
    [
        "null",
        "1e999",
        '{"python": 5, "problems": []}',
        '{"python": "3.12", "packages": [], "problems": []}',
        '{"python": "3.12", "problems": [[1]]}',
        '{"python": "3.12", "problems": [], "x": 1}',
    ],
)
def test_report_of_another_form_is_a_problem(tmp_path: Path, facts: str) -> None:
    (problem,) = environment.python_of(script(tmp_path / "python", f"echo '{facts}'")).problems
    assert problem.endswith("exited with status 0: nothing")


def test_a_missing_or_hanging_interpreter_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MatrixError, match="can't be started"):
        environment.python_of(str(tmp_path / "python"))
    monkeypatch.setattr(environment, "TIMEOUT_S", 0.2)
    (slow,) = environment.python_of(script(tmp_path / "slow", "exec sleep 60")).problems
    assert "did not finish" in slow


def test_mpirun_is_the_one_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment.mpirun() is None
    path = script(tmp_path / "mpirun", "echo 'mpirun (Open MPI) 5.0.11'; echo; echo 'Report bugs to'")
    assert environment.mpirun() == (path, "mpirun (Open MPI) 5.0.11")


def test_mpirun_that_is_not_utf8_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    path = script(tmp_path / "mpirun", r"printf 'Intel\256 MPI\n'")
    assert environment.mpirun() == (path, "Intel\ufffd MPI")


def test_only_known_environment_variables_are_kept() -> None:
    environ = {"WORLD_SIZE": "8", "SETTING": "1", "TOKEN": "secret", "PMIX_SERVER_URI": "secret"}
    site = environment.job_site(environ, ["SETTING"], PythonEnvironment(path=Path(sys.executable)))
    assert site.environ == {"WORLD_SIZE": "8", "SETTING": "1"}
    assert site.machine.memory
    assert site.machine.available
    assert "secret" not in repr(site)
