"""The tox process of a run: its command, its environment, and its end after Ctrl-C."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.model import Wheels
from matrix.ground.errors import MatrixError
from matrix.prove.execution import engine
from matrix.prove.execution.engine import (
    EngineRequest,
    EngineResult,
    Engines,
    HostEngine,
    Tox,
    tox_command,
    work_folder,
)
from matrix.prove.provision.configuration import Configuration
from matrix.prove.provision.project import ROOT
from matrix.prove.store import stored_run
from matrix.prove.store.stored_run import StoredRun
from matrix.read import scratch
from matrix.read.commands import python_module
from tests.unit.catalogs import catalog, failure, plan_entry, planned, wheels
from tests.unit.processes import ended

PYTEST = python_module("", "pytest", "tests/failures", folder=ROOT)[1:]

# Replaces the interpreter with tox: writes its arguments and environment to a file, then runs `body`.
FAKE = """#!{python}
import json, os, signal, subprocess, sys, time
from pathlib import Path
from typing import Any
call = Path({call!r})
given = {{"arguments": sys.argv[1:], "environment": dict(os.environ), "group": os.getpgrp(), "folder": os.getcwd()}}
call.write_text(json.dumps(given))
print("what tox prints", flush=True)
{body}
"""
INTERRUPTED = """
def stop(number, frame):
    (call.parent / "interrupted").touch()
    raise SystemExit(3)
signal.signal(signal.SIGINT, stop)
os.kill(os.getppid(), signal.SIGINT)  # Ctrl-C at the terminal
time.sleep(60)
"""
STUBBORN = """
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
(call.parent / "child").write_text(str(child.pid))
os.kill(os.getppid(), signal.SIGINT)
time.sleep(60)
"""


def request(log: Path, *bases: str, run: Path = Path("/runs/a")) -> EngineRequest:
    """Return the request to run these bases with their output in `log`."""
    return EngineRequest(bases, StoredRun(run), log, "/records")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function that makes a tox which runs `body`, and returns the file with its call."""

    def make(body: str) -> Path:
        script, call = tmp_path / "tox", tmp_path / "call.json"
        script.write_text(FAKE.format(python=sys.executable, call=str(call), body=body))
        script.chmod(0o755)
        monkeypatch.setenv("MEGATRIX_TOX", str(script))
        monkeypatch.setattr(sys, "executable", str(script))
        return call

    return make


def test_tox_runs_the_environments_in_parallel(
    fake: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOX_WORK_DIR", "/somewhere")
    call = fake("sys.exit(0)")
    Tox(3).run(request(tmp_path / "log", "torch-2.3.1", "torch-2.4.0"))
    got = json.loads(call.read_text())
    arguments = got["arguments"]
    assert (arguments[:2], got["folder"]) == (python_module("", "tox")[1:], str(ROOT))
    assert arguments[2:6] == ["run-parallel", "--parallel-no-spinner", "-p", "3"]
    assert ["--workdir", "/somewhere", "-c", str(ROOT / "tox.ini"), "-e", "torch-2.3.1,torch-2.4.0"] == arguments[6:12]
    assert Path(arguments[13]).parent.parent == scratch.folder()  # so that nothing is left after kill -9


def test_workers_are_passed_to_pytest(fake: Callable[[str], Path], tmp_path: Path) -> None:
    call = fake("sys.exit(0)")
    Tox(2, workers=3).run(request(tmp_path / "log", "torch-2.4.0"))
    assert json.loads(call.read_text())["arguments"][-3:] == ["--", "-n", "3"]
    HostEngine(3).run(request(tmp_path / "log", "host"))
    assert json.loads(call.read_text())["arguments"] == [*PYTEST, "-n", "3"]


@pytest.mark.parametrize("level", [Level.CPU, Level.GPU])
def test_a_base_runs_again_with_the_same_variables(
    fake: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: Level
) -> None:
    """By the interpreter of its environment, with what tox let through: without this process's other variables."""
    stored_run.write_plan(tmp_path / "run", [plan_entry(replace(planned(catalog(failure())), level=level))])
    monkeypatch.setenv("TOX_WORK_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", "/of/the/shell")
    monkeypatch.setenv("MY_PASSWORD", "hunter2-hunter2")
    kept = {"HOME": "/home/me", "TOX_ENV_NAME": "torch-2.4.0", "MEGATRIX_BASE": "torch-2.4.0", "MEGATRIX_RELAY": "/old"}
    write = f"Path(os.environ['MEGATRIX_VARIABLES'], 'torch-2.4.0').write_text({json.dumps(kept)!r})"
    call = fake(f"'run-parallel' in sys.argv and {write}")
    python = tmp_path / "torch-2.4.0" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(tmp_path / "tox")
    made = Tox(1)
    for module in ("tox", "pytest"):
        made.run(request(tmp_path / "log", "torch-2.4.0", run=tmp_path / "run"))
        expected = PYTEST if module == "pytest" else python_module("", "tox")[1:]
        assert json.loads(call.read_text())["arguments"][: len(expected)] == expected
    given = json.loads(call.read_text())["environment"]
    assert {name: given[name] for name in kept} == {**kept, "MEGATRIX_RELAY": "/records"}
    assert not {"PYTHONPATH", "MY_PASSWORD"} & given.keys()


def test_base_without_environment_runs_by_tox_again(fake: Callable[[str], Path], tmp_path: Path) -> None:
    call = fake("sys.exit(1)")
    made = Tox(1)
    for _ in range(2):
        made.run(request(tmp_path / "log", "torch-2.4.0"))
        assert json.loads(call.read_text())["arguments"][:2] == python_module("", "tox")[1:]


def test_workers_here_need_xdist(monkeypatch: pytest.MonkeyPatch) -> None:
    HostEngine(2).ready(["host"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    HostEngine(1).ready(["host"])
    with pytest.raises(MatrixError, match="-n needs pytest-xdist"):
        HostEngine(2).ready(["host"])


def test_tox_gets_no_variables_of_an_outer_tox(
    fake: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inner tox would read TOX_ENV_NAME and others as its settings."""
    monkeypatch.setenv("TOX_ENV_NAME", "nightly")
    monkeypatch.setenv("HOME_OF_THE_TEST", "kept")
    call = fake("sys.exit(0)")
    Tox(1).run(request(tmp_path / "log", "torch-2.4.0"))
    got = json.loads(call.read_text())["environment"]
    assert (got["MEGATRIX_RUN"], got["MEGATRIX_RELAY"], got["HOME_OF_THE_TEST"]) == ("/runs/a", "/records", "kept")
    assert [name for name in got if name.startswith("TOX_")] == []


@pytest.mark.parametrize(("engine", "base"), [(Tox, "torch-2.4.0"), (HostEngine, "host")])
def test_processes_get_the_engines_variables(
    fake: Callable[[str], Path], tmp_path: Path, engine: Any, base: str
) -> None:
    """A bisection of a command adds its folder of failures there, and leaves this process's variables as they are."""
    call = fake("sys.exit(0)")
    engine(1, environ={**os.environ, "MEGATRIX_FAILURES": "/own"}).run(request(tmp_path / "log", base))
    assert json.loads(call.read_text())["environment"]["MEGATRIX_FAILURES"] == "/own"
    assert "MEGATRIX_FAILURES" not in os.environ


@pytest.mark.parametrize(("only_make", "kept"), [(True, ""), (False, "/without-gpu.txt")])
def test_nodes_get_the_packages_for_gpus(
    fake: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only_make: bool, kept: str
) -> None:
    """The machine that submits to a cluster often has no GPU; the nodes use its environments."""
    monkeypatch.setenv("UV_EXCLUDE", "/without-gpu.txt")  # as the toxfile of an outer tox sets it
    call = fake("sys.exit(0)")
    Tox(1, only_make=only_make).run(request(tmp_path / "log", "torch-2.4.0"))
    assert json.loads(call.read_text())["environment"]["UV_EXCLUDE"] == kept


@pytest.mark.parametrize("status", [0, 1, 137])
def test_engine_returns_the_status_of_tox(fake: Callable[[str], Path], tmp_path: Path, status: int) -> None:
    fake(f"sys.exit({status})")
    assert EngineResult(status) == Tox(1).run(request(tmp_path / "log", "torch-2.4.0"))


RESULTS = """
import json, sys
failed = {"retcode": 1, "output": "", "err": "error: no solution\\n  cause: https://me:secret@index/simple fails"}
ran = {"setup": [failed], "test": [{"retcode": 1}]}
done = {"torch-2.4.0": {"setup": [{"retcode": 0}, failed]}, "torch-2.3.1": ran}
open(sys.argv[sys.argv.index("--result-json") + 1], "w").write(json.dumps({"testenvs": done}))
sys.exit(1)
"""


def test_a_base_without_its_environment_is_refused(fake: Callable[[str], Path], tmp_path: Path) -> None:
    """Its cases are unavailable with uv's reason; a base whose tests began is not refused."""
    fake(RESULTS)

    ended = Tox(1).run(request(tmp_path / "log", "torch-2.3.1", "torch-2.4.0", "torch-2.4.1"))

    assert ended.refused == {
        "torch-2.4.0": "tox can't make its environment: error: no solution cause: https://***@index/simple fails; "
        "see tox run -e torch-2.4.0 --notest"
    }


def test_tox_downloads_and_reports_missing_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    base, said, provided = wheels("2.4.0"), list[str](), list[str]()

    class Fake:
        def __init__(self, configuration: Configuration, say: Callable[[str], None]) -> None:
            say("downloads")

        def provide(self, base: Wheels) -> None:
            provided.append(base.id)

        def lack(self, base: Wheels) -> str:
            return f"needs Python for {base.id}"

    monkeypatch.setattr(engine, "Pythons", Fake)
    monkeypatch.setenv("MEGATRIX_TOX", sys.executable)  # these tests run without tox, too
    made = Tox(1, {base.id: base, "torch-2.5.1": wheels("2.5.1"), "torch-2.6.0": wheels("2.6.0")}, say=said.append)
    made.ready(["torch-2.5.1", "another", "torch-2.4.0"])

    assert (provided, said) == (["torch-2.4.0", "torch-2.5.1"], ["downloads"])
    assert [made.lacks(one) for one in ("torch-2.4.0", "another")] == ["needs Python for torch-2.4.0", ""]


def test_output_of_tox_is_appended_to_the_log(fake: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before\n")
    fake("print('an error', file=sys.stderr)")
    Tox(1).run(request(tmp_path / "log", "torch-2.4.0"))
    assert (tmp_path / "log").read_text() == "before\nwhat tox prints\nan error\n"


def test_ctrl_c_is_forwarded_once_and_raised_again(fake: Callable[[str], Path], tmp_path: Path) -> None:
    """tox has its own process group, so that the terminal does not send a second SIGINT."""
    call = fake(INTERRUPTED)
    with pytest.raises(KeyboardInterrupt):
        Tox(1).run(request(tmp_path / "log", "torch-2.4.0"))
    assert (tmp_path / "interrupted").exists()
    assert os.getpgrp() != json.loads(call.read_text())["group"]


def test_hanging_tox_is_killed_with_its_children(
    fake: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "STOP_S", 0.1)
    fake(STUBBORN)
    with pytest.raises(KeyboardInterrupt):
        Tox(1).run(request(tmp_path / "log", "torch-2.4.0"))
    assert ended(int((tmp_path / "child").read_text()))


def test_here_runs_pytest_in_the_projects_folder(fake: Callable[[str], Path], tmp_path: Path) -> None:
    call = fake("sys.exit(1)")
    assert HostEngine().run(request(tmp_path / "log", "host")) == EngineResult(1)
    got = json.loads(call.read_text())
    assert (got["arguments"], got["folder"]) == (PYTEST, str(ROOT))
    assert (tmp_path / "log").read_text() == "what tox prints\n"


def test_here_clears_the_base_variable(
    fake: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEGATRIX_BASE", "torch-2.4.0")
    call = fake("sys.exit(0)")
    HostEngine().run(request(tmp_path / "log", "host"))
    got = json.loads(call.read_text())["environment"]
    assert (got["MEGATRIX_BASE"], got["MEGATRIX_RUN"], got["MEGATRIX_PYTEST"]) == ("", "/runs/a", "megatrix run --here")


def test_here_forwards_ctrl_c(fake: Callable[[str], Path], tmp_path: Path) -> None:
    fake(INTERRUPTED)
    with pytest.raises(KeyboardInterrupt):
        HostEngine().run(request(tmp_path / "log", "host"))
    assert (tmp_path / "interrupted").exists()


def test_here_returns_its_own_environment() -> None:
    held = HostEngine().installed("host")
    assert held is not None
    assert (held.path, "pytest" in held.packages) == (Path(sys.executable), True)


@pytest.mark.parametrize("made", [Tox(1), HostEngine()], ids=lambda made: type(made).__name__)
def test_cache_and_clones_are_absolute_paths(
    made: Tox | HostEngine, fake: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell starts in another folder than the caller."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MEGATRIX_CACHE", "cache")
    monkeypatch.setenv("MEGATRIX_MEGATRON_LM", "Megatron-LM")
    call = fake("sys.exit(0)")
    made.run(request(tmp_path / "log", "host"))
    got = json.loads(call.read_text())["environment"]
    assert (got["MEGATRIX_CACHE"], got["MEGATRIX_MEGATRON_LM"]) == (
        str(tmp_path / "cache"),
        str(tmp_path / "Megatron-LM"),
    )


def test_only_engines_with_bases_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of the host needs no tox."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    engines = Engines({"host"}, HostEngine(), Tox(1))
    engines.ready(["host"])
    with pytest.raises(MatrixError, match="tox is needed to run"):
        engines.ready(["host", "torch-2.4.0"])


def test_tox_command_uses_megatrix_tox() -> None:
    assert tox_command({"MEGATRIX_TOX": "/venv/bin/python"}) == python_module("/venv/bin/python", "tox")


def test_missing_tox_raises_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MatrixError, match=r"pip install 'megatrix\[desk\]'"):
        tox_command({})


def test_tox_command_defaults_to_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert tox_command({}) == python_module(sys.executable, "tox")


def test_work_folder_is_tox_work_dir_or_default() -> None:
    assert (Path("/somewhere"), ROOT / ".tox") == (work_folder({"TOX_WORK_DIR": "/somewhere"}), work_folder({}))
