from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.catalog.machine import PythonEnvironment
from matrix.ground.errors import MatrixError
from matrix.prove.provision.bases import find_python, patch
from matrix.read.commands import CommandResult, run

NOWHERE = Path("/nonexistent/python")


def python(path: Path, version: str, *, name: str = "cpython") -> Path:
    """Write an interpreter that prints this version."""
    return script(path, f"echo {name} {version} {path}")


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def environment(tmp_path: Path, *folders: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "PATH": ":".join(map(str, folders))}


def test_the_running_interpreter_is_found() -> None:
    minor = "{}.{}".format(*sys.version_info)

    found = find_python([minor], environ={})

    assert found.minor == minor
    assert found.python == "{}.{}.{}".format(*sys.version_info)
    assert found.path is not None
    assert found.path.is_file()


def test_a_failing_shim_is_skipped(tmp_path: Path) -> None:
    script(tmp_path / "shims/python3.10", "echo 'pyenv: python3.10: command not found' >&2; exit 127")
    real = python(tmp_path / "bin/python3.10", "3.10.12")

    found = find_python(
        ["3.10"], environ=environment(tmp_path, tmp_path / "shims", tmp_path / "bin"), executable=NOWHERE
    )

    assert found == PythonEnvironment("3.10.12", path=real)


def test_the_first_available_minor_wins(tmp_path: Path) -> None:
    python(tmp_path / "bin/python3.11", "3.11.7")

    environ = environment(tmp_path, tmp_path / "bin")

    assert find_python(["3.10", "3.11"], environ=environ, executable=NOWHERE).python == "3.11.7"
    python(tmp_path / "bin/python3.10", "3.10.1")
    assert find_python(["3.10", "3.11"], environ=environ, executable=NOWHERE).python == "3.10.1"


@pytest.mark.parametrize(("only", "version"), [("3.11", "3.11.7"), ("3.12", "3.10.1"), ("", "3.10.1")])
def test_setting_excludes_the_other_minors(only: str, version: str, tmp_path: Path) -> None:
    """A setting for another base, whose Pythons it is none of, excludes none."""
    python(tmp_path / "bin/python3.10", "3.10.1")
    python(tmp_path / "bin/python3.11", "3.11.7")
    environ = {**environment(tmp_path, tmp_path / "bin"), "MEGATRIX_PYTHON": only}
    assert find_python(["3.10", "3.11"], environ=environ, executable=NOWHERE).python == version


def test_inactive_versions_of_pyenv_are_found(tmp_path: Path) -> None:
    for version in ("3.10.1", "3.10.13", "3.10.9", "3.100.1"):
        python(tmp_path / f".pyenv/versions/{version}/bin/python{version.rpartition('.')[0]}", version)

    assert find_python(["3.10"], environ=environment(tmp_path), executable=NOWHERE).python == "3.10.13"


def test_pyenvs_shims_are_not_started(tmp_path: Path) -> None:
    """Each takes 0.2 s, and its targets are candidates anyway."""
    script(tmp_path / ".pyenv/shims/python3.10", f"touch {tmp_path}/started; exit 127")
    python(tmp_path / ".pyenv/versions/3.10.13/bin/python3.10", "3.10.13")

    find_python(["3.10"], environ=environment(tmp_path, tmp_path / ".pyenv/shims"), executable=NOWHERE)

    assert not (tmp_path / "started").exists()


def test_versions_installed_by_uv_are_found(tmp_path: Path) -> None:
    home = tmp_path / ".local/share/uv/python/cpython-3.12.1-linux-x86_64-gnu"
    real = python(home / "bin/python3.12", "3.12.1")

    assert find_python(["3.12"], environ=environment(tmp_path), executable=NOWHERE).path == real


def test_python3_counts_by_its_reported_version(tmp_path: Path) -> None:
    python(tmp_path / "bin/python3", "3.13.0")

    assert find_python(["3.13"], environ=environment(tmp_path, tmp_path / "bin"), executable=NOWHERE).python == "3.13.0"


def test_another_implementation_is_refused_with_the_reason(tmp_path: Path) -> None:
    python(tmp_path / "bin/python3.10", "3.10.14", name="pypy")

    with pytest.raises(MatrixError, match=r"bin/python3\.10: is pypy"):
        find_python(["3.10"], environ=environment(tmp_path, tmp_path / "bin"), executable=NOWHERE)


def test_the_error_lists_found_versions_and_a_fix(tmp_path: Path) -> None:
    script(tmp_path / "bin/python3.14", "echo broken >&2; exit 1")
    other = python(tmp_path / "bin/python3", "3.12.1")

    with pytest.raises(MatrixError) as caught:
        find_python(["3.14", "3.13"], environ=environment(tmp_path, tmp_path / "bin"), executable=NOWHERE)

    text = str(caught.value)
    assert text.startswith("no Python 3.14 or 3.13 found")
    assert f"3.12.1 ({other})" in text
    assert "python3.14: does not run (broken)" in text
    assert "uv python install 3.14" in text


def test_no_candidate_is_started_twice(tmp_path: Path) -> None:
    python(tmp_path / "bin/python3", "3.12.1")
    started: list[str] = []

    def counting(
        command: Sequence[str], *, environment: Mapping[str, str] | None = None, seconds: float | None = None
    ) -> CommandResult:
        started.append(command[0])
        return run(command, environment=environment, seconds=seconds)

    with pytest.raises(MatrixError):
        find_python(
            ["3.8", "3.9", "3.10"], environ=environment(tmp_path, tmp_path / "bin"), executable=NOWHERE, run=counting
        )

    assert started == [str(tmp_path / "bin/python3")]


@given(st.integers(0, 99), st.sampled_from(["3.10.{}", "cpython-3.10.{}-linux-x86_64-gnu"]))
def test_installations_are_ordered_by_their_patch_number(number: int, name: str) -> None:
    assert patch(Path("/versions") / name.format(number)) == number
