"""The tox that a run starts: its command, its environment, and that Ctrl-C leaves nothing behind."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from matrix.errors import MatrixError
from matrix.execution import engine
from matrix.execution.engine import Ending, Engines, Here, Tox, tox_command, work_folder
from matrix.provision.project import ROOT

HANG_S = 10.0  # only a bound against hanging
# In place of the interpreter that has tox: writes what it was given, then does what the test says.
FAKE = """#!{python}
import json, os, signal, subprocess, sys, time
from pathlib import Path
told = Path({told!r})
given = {{"arguments": sys.argv[1:], "environment": dict(os.environ), "group": os.getpgrp(), "folder": os.getcwd()}}
told.write_text(json.dumps(given))
print("what tox prints", flush=True)
{body}
"""
INTERRUPTED = """
def stop(number, frame):
    (told.parent / "interrupted").touch()
    raise SystemExit(3)
signal.signal(signal.SIGINT, stop)
os.kill(os.getppid(), signal.SIGINT)  # the person at the desk
time.sleep(60)
"""
STUBBORN = """
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
(told.parent / "child").write_text(str(child.pid))
os.kill(os.getppid(), signal.SIGINT)
time.sleep(60)
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Make the tox that does `body`; what it was given is in the file that is returned."""

    def make(body: str) -> Path:
        script, told = tmp_path / "tox", tmp_path / "told.json"
        script.write_text(FAKE.format(python=sys.executable, told=str(told), body=body))
        script.chmod(0o755)
        monkeypatch.setenv("MEGATRIX_TOX", str(script))
        monkeypatch.setattr(sys, "executable", str(script))
        return told

    return make


def ended(process: int) -> bool:
    """Say whether a process that is not our child is gone, or goes within HANG_S."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    readable, _, _ = select.select([handle], [], [], HANG_S)
    os.close(handle)
    return bool(readable)


def test_tox_gets_the_environments_of_the_bases_in_parallel(
    fake: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOX_WORK_DIR", "/somewhere")
    told = fake("sys.exit(0)")
    Tox(3).run(["torch-2.3.1", "torch-2.4.0"], {"MEGATRIX_RUN": "/runs/a"}, tmp_path / "log")
    arguments = json.loads(told.read_text())["arguments"]
    assert arguments[:6] == ["-m", "tox", "run-parallel", "--parallel-no-spinner", "-p", "3"]
    assert ["--workdir", "/somewhere", "-c", str(ROOT / "tox.ini"), "-e", "torch2.3.1,torch2.4.0"] == arguments[6:]


def test_tox_gets_the_run_and_nothing_of_the_tox_around_it(
    fake: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TOX_ENV_NAME and its like would be taken for the settings of the inner one."""
    monkeypatch.setenv("TOX_ENV_NAME", "nightly")
    monkeypatch.setenv("HOME_OF_THE_TEST", "kept")
    told = fake("sys.exit(0)")
    Tox(1).run(["torch-2.4.0"], {"MEGATRIX_RUN": "/runs/a", "MEGATRIX_RELAY": "/records"}, tmp_path / "log")
    got = json.loads(told.read_text())["environment"]
    assert (got["MEGATRIX_RUN"], got["MEGATRIX_RELAY"], got["HOME_OF_THE_TEST"]) == ("/runs/a", "/records", "kept")
    assert [name for name in got if name.startswith("TOX_")] == []


@pytest.mark.parametrize("status", [0, 1, 137])
def test_the_status_of_tox_is_that_of_the_engine(fake: Callable[[str], Path], tmp_path: Path, status: int) -> None:
    fake(f"sys.exit({status})")
    assert Ending(status) == Tox(1).run(["torch-2.4.0"], {}, tmp_path / "log")


def test_what_tox_prints_is_added_to_the_log(fake: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before\n")
    fake("print('an error', file=sys.stderr)")
    Tox(1).run(["torch-2.4.0"], {}, tmp_path / "log")
    assert (tmp_path / "log").read_text() == "before\nwhat tox prints\nan error\n"


def test_ctrl_c_is_passed_on_once_and_raised_again(fake: Callable[[str], Path], tmp_path: Path) -> None:
    """tox has a process group of its own: what the terminal sends does not reach it a second time."""
    told = fake(INTERRUPTED)
    with pytest.raises(KeyboardInterrupt):
        Tox(1).run(["torch-2.4.0"], {}, tmp_path / "log")
    assert (tmp_path / "interrupted").exists()
    assert os.getpgrp() != json.loads(told.read_text())["group"]


def test_a_tox_that_does_not_stop_is_killed_with_its_children(
    fake: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "STOP_S", 0.1)
    fake(STUBBORN)
    with pytest.raises(KeyboardInterrupt):
        Tox(1).run(["torch-2.4.0"], {}, tmp_path / "log")
    assert ended(int((tmp_path / "child").read_text()))


def test_here_runs_pytest_in_the_projects_folder(fake: Callable[[str], Path], tmp_path: Path) -> None:
    told = fake("sys.exit(1)")
    assert Here().run(["host"], {"MEGATRIX_RUN": "/runs/a"}, tmp_path / "log") == Ending(1)
    got = json.loads(told.read_text())
    assert (got["arguments"], got["folder"]) == (["-m", "pytest", "tests/failures"], str(ROOT))
    assert (tmp_path / "log").read_text() == "what tox prints\n"


def test_here_stands_for_no_base_of_the_catalog(
    fake: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEGATRIX_BASE", "torch-2.4.0")
    told = fake("sys.exit(0)")
    Here().run(["host"], {"MEGATRIX_RUN": "/runs/a"}, tmp_path / "log")
    got = json.loads(told.read_text())["environment"]
    assert (got["MEGATRIX_BASE"], got["MEGATRIX_RUN"], got["MEGATRIX_PYTEST"]) == ("", "/runs/a", "megatrix run --here")


def test_ctrl_c_reaches_the_pytest_here(fake: Callable[[str], Path], tmp_path: Path) -> None:
    fake(INTERRUPTED)
    with pytest.raises(KeyboardInterrupt):
        Here().run(["host"], {}, tmp_path / "log")
    assert (tmp_path / "interrupted").exists()


def test_here_holds_what_is_installed_beside_it() -> None:
    held = Here().installed("host")
    assert held is not None
    assert (held.interpreter, "pytest" in held.environment.packages) == (Path(sys.executable), True)


@pytest.mark.parametrize("made", [Tox(1), Here()], ids=lambda made: type(made).__name__)
def test_a_cell_gets_the_cache_and_clones_absolute(
    made: Tox | Here, fake: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts in another folder than the person who set them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MEGATRIX_CACHE", "cache")
    monkeypatch.setenv("MEGATRIX_MEGATRON_LM", "Megatron-LM")
    told = fake("sys.exit(0)")
    made.run(["host"], {}, tmp_path / "log")
    got = json.loads(told.read_text())["environment"]
    assert (got["MEGATRIX_CACHE"], got["MEGATRIX_MEGATRON_LM"]) == (
        str(tmp_path / "cache"),
        str(tmp_path / "Megatron-LM"),
    )


def test_only_an_engine_with_bases_has_to_be_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of the host needs no tox."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    engines = Engines({"host"}, Here(), Tox(1))
    engines.ready(["host"])
    with pytest.raises(MatrixError, match="tox is needed to run"):
        engines.ready(["host", "torch-2.4.0"])


def test_the_tox_that_runs_us_is_used_again() -> None:
    assert tox_command({"MEGATRIX_TOX": "/venv/bin/python"}) == ["/venv/bin/python", "-m", "tox"]


def test_without_a_tox_the_error_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MatrixError, match=r"pip install 'megatrix\[desk\]'"):
        tox_command({})


def test_without_one_around_us_the_tox_of_this_python_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert [sys.executable, "-m", "tox"] == tox_command({})


def test_environments_are_where_tox_keeps_them() -> None:
    assert (Path("/somewhere"), ROOT / ".tox") == (work_folder({"TOX_WORK_DIR": "/somewhere"}), work_folder({}))
