"""The pytest processes of a run: their commands, their variables, and their end after Ctrl-C."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from matrix.ground.catalog.machine import PythonEnvironment
from matrix.ground.errors import MatrixError
from matrix.kit.launch import VARIABLES
from matrix.prove.execution import engine
from matrix.prove.execution.engine import EngineRequest, EngineResult, Engines, HostEngine, LocalEngine
from matrix.prove.provision import host
from matrix.prove.provision.project import ROOT
from matrix.prove.store.stored_run import StoredRun
from matrix.read import scratch
from matrix.read.commands import python_module
from tests.unit.processes import ended

WORDS = ["tests/failures", "-p", "no:cacheprovider", "-o", "filterwarnings=default"]
PYTEST = python_module("", "pytest", *WORDS, folder=ROOT)[1:]

# Replaces the interpreter: writes its arguments and environment to a file, then runs `body`.
FAKE = """#!{python}
import json, os, signal, subprocess, sys, time
from pathlib import Path
from typing import Any
call = Path({call!r})
given = {{"arguments": sys.argv[1:], "environment": dict(os.environ), "group": os.getpgrp(), "folder": os.getcwd()}}
call.write_text(json.dumps(given))
print("what pytest prints", flush=True)
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


class FakeBases:
    """Bases whose interpreter is `python`; those of `broken` can't be made."""

    def __init__(self, python: Path | None = None, broken: Collection[str] = ()) -> None:
        self.python, self.broken = python, broken
        self.made: list[str] = []

    def ready(self, bases: Collection[str]) -> None:
        """Note what is asked for."""
        self.made.append(f"ready: {', '.join(bases)}")

    def provide(self, base: str) -> PythonEnvironment:
        self.made.append(base)
        if base in self.broken:
            raise MatrixError("uv can't make this base", where=base)
        return PythonEnvironment("3.10.13", path=self.python)


def local(fake: Path, jobs: int = 1, broken: Collection[str] = (), **options: Any) -> LocalEngine:
    """Return the engine whose bases have the interpreter of the `fake` call."""
    return LocalEngine(FakeBases(fake.parent / "python", broken), jobs, **options)  # type: ignore[arg-type]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function that makes an interpreter which runs `body`, and returns the file with its call."""

    def make(body: str) -> Path:
        script, call = tmp_path / "python", tmp_path / "call.json"
        script.write_text(FAKE.format(python=sys.executable, call=str(call), body=body))
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))
        return call

    return make


def test_local_bases_run_pytest_in_the_projects_folder(fake: Callable[[str], Path], tmp_path: Path) -> None:
    call = fake("sys.exit(0)")
    assert local(call).run(request(tmp_path / "log", "torch-2.4.0")) == EngineResult()
    got = json.loads(call.read_text())
    environ = got["environment"]
    assert (got["arguments"], got["folder"], environ["MEGATRIX_BASE"]) == (PYTEST, str(ROOT), "torch-2.4.0")
    assert (environ["MEGATRIX_RUN"], environ["MEGATRIX_RELAY"]) == ("/runs/a", "/records")
    assert Path(environ["TMPDIR"]) == scratch.folder()  # so that nothing is left after kill -9
    assert environ["PATH"].split(":")[0] == str(tmp_path)


ALONE = """
folder = call.parent / "running"
folder.mkdir(exist_ok=True)
mine = folder / os.environ["MEGATRIX_BASE"]
mine.touch()
(call.parent / f"most-{mine.name}").write_text(str(len(list(folder.iterdir()))))
time.sleep(0.3)
mine.unlink()
"""


@pytest.mark.parametrize("jobs", [1, 2])
def test_at_most_jobs_bases_run_at_a_time(fake: Callable[[str], Path], tmp_path: Path, jobs: int) -> None:
    call = fake(ALONE)
    bases = [f"torch-2.{minor}.0" for minor in range(4)]
    assert local(call, jobs).run(request(tmp_path / "log", *bases)) == EngineResult()
    most = [int(path.read_text()) for path in tmp_path.glob("most-*")]
    assert len(most) == 4
    assert max(most) <= jobs


def test_workers_are_passed_to_pytest(fake: Callable[[str], Path], tmp_path: Path) -> None:
    call = fake("sys.exit(0)")
    for started in (local(call, workers=3), HostEngine(3)):
        started.run(request(tmp_path / "log", "torch-2.4.0"))
        assert json.loads(call.read_text())["arguments"] == [*PYTEST, "-p", "xdist", "-n", "3"]


def test_cell_gets_few_variables(fake: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a job's launcher would make a rank of a case count as one of the job."""
    kept = {"HOME": "/home/me", "UV_INDEX": "x", "https_proxy": "y", "MEGATRIX_CACHE": "/c", host.VISIBLE: "1"}
    refused = ["PYTHONPATH", "MY_PASSWORD", "NCCL_DEBUG", "PYTEST_ADDOPTS", "TOX_ENV_NAME", "UB_SKIPMC", *VARIABLES]
    for name, value in {**kept, **dict.fromkeys(refused, "set")}.items():
        monkeypatch.setenv(name, value)
    call = fake("sys.exit(0)")
    local(call).run(request(tmp_path / "log", "torch-2.4.0"))
    given = json.loads(call.read_text())["environment"]
    assert {name: given[name] for name in kept} == kept
    assert not {*refused} & given.keys()


def test_nodes_get_environments_and_no_process(tmp_path: Path) -> None:
    bases = FakeBases(tmp_path / "python")
    engine = LocalEngine(bases, only_make=True)  # type: ignore[arg-type]
    assert engine.run(request(tmp_path / "log", "torch-2.3.1", "torch-2.4.0")) == EngineResult()
    assert bases.made == ["torch-2.3.1", "torch-2.4.0"]


@pytest.mark.parametrize("status", [0, 1, 137])
def test_local_returns_a_status_that_is_not_0(fake: Callable[[str], Path], tmp_path: Path, status: int) -> None:
    call = fake(f"sys.exit({status} if os.environ['MEGATRIX_BASE'] == 'torch-2.4.0' else 0)")
    assert EngineResult(status) == local(call).run(request(tmp_path / "log", "torch-2.3.1", "torch-2.4.0", "no-torch"))


def test_a_base_without_its_environment_is_refused(fake: Callable[[str], Path], tmp_path: Path) -> None:
    """Its cases are unavailable with uv's reason; the others run."""
    call = fake("sys.exit(0)")
    result = local(call, broken=["torch-2.3.1"]).run(request(tmp_path / "log", "torch-2.3.1", "torch-2.4.0"))
    assert result.refused == {"torch-2.3.1": "torch-2.3.1: uv can't make this base"}
    assert json.loads(call.read_text())["environment"]["MEGATRIX_BASE"] == "torch-2.4.0"


def test_workers_here_need_xdist(monkeypatch: pytest.MonkeyPatch) -> None:
    HostEngine(2).ready(["host"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    HostEngine(1).ready(["host"])
    with pytest.raises(MatrixError, match="-n needs pytest-xdist"):
        HostEngine(2).ready(["host"])


@pytest.mark.parametrize("base", ["torch-2.4.0", "host"])
def test_processes_get_the_engines_variables(fake: Callable[[str], Path], tmp_path: Path, base: str) -> None:
    """A bisection of a command adds its folder of failures there, and leaves this process's variables as they are."""
    call, environ = fake("sys.exit(0)"), {**os.environ, "MEGATRIX_FAILURES": "/own"}
    engine = HostEngine(1, environ) if base == "host" else local(call, environ=environ)
    engine.run(request(tmp_path / "log", base))
    assert json.loads(call.read_text())["environment"]["MEGATRIX_FAILURES"] == "/own"
    assert "MEGATRIX_FAILURES" not in os.environ


def test_output_is_appended_to_the_log(fake: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before\n")
    call = fake("print('an error', file=sys.stderr)")
    local(call).run(request(tmp_path / "log", "torch-2.4.0"))
    assert (tmp_path / "log").read_text() == "before\nwhat pytest prints\nan error\n"


def test_ctrl_c_is_forwarded_once_and_raised_again(fake: Callable[[str], Path], tmp_path: Path) -> None:
    """pytest has its own process group, so that the terminal does not send a second SIGINT."""
    call = fake(INTERRUPTED)
    with pytest.raises(KeyboardInterrupt):
        local(call).run(request(tmp_path / "log", "torch-2.4.0"))
    assert (tmp_path / "interrupted").exists()
    assert os.getpgrp() != json.loads(call.read_text())["group"]


def test_hanging_pytest_is_killed_with_its_children(
    fake: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "STOP_S", 0.1)
    call = fake(STUBBORN)
    with pytest.raises(KeyboardInterrupt):
        local(call).run(request(tmp_path / "log", "torch-2.4.0"))
    assert ended(int((tmp_path / "child").read_text()))


def test_here_runs_pytest_in_the_projects_folder(fake: Callable[[str], Path], tmp_path: Path) -> None:
    call = fake("sys.exit(1)")
    assert HostEngine().run(request(tmp_path / "log", "host")) == EngineResult(1)
    got = json.loads(call.read_text())
    assert (got["arguments"], got["folder"]) == (PYTEST, str(ROOT))
    assert (tmp_path / "log").read_text() == "what pytest prints\n"


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


@pytest.mark.parametrize("base", ["torch-2.4.0", "host"])
def test_cache_and_clones_are_absolute_paths(
    base: str, fake: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell starts in another folder than the caller."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MEGATRIX_CACHE", "cache")
    monkeypatch.setenv("MEGATRIX_MEGATRON_LM", "Megatron-LM")
    call = fake("sys.exit(0)")
    (HostEngine() if base == "host" else local(call)).run(request(tmp_path / "log", base))
    got = json.loads(call.read_text())["environment"]
    assert (got["MEGATRIX_CACHE"], got["MEGATRIX_MEGATRON_LM"]) == (
        str(tmp_path / "cache"),
        str(tmp_path / "Megatron-LM"),
    )


def test_only_engines_with_bases_are_checked() -> None:
    """A run of the host needs no uv."""
    bases = FakeBases()
    engines = Engines({"host"}, HostEngine(), LocalEngine(bases))  # type: ignore[arg-type]
    engines.ready(["host"])
    engines.ready(["host", "torch-2.4.0"])
    assert bases.made == ["ready: torch-2.4.0"]


def test_host_settings_do_not_reach_pytest(fake: Callable[[str], Path], tmp_path: Path) -> None:
    call = fake("")
    theirs = {
        **dict.fromkeys(("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTHONDEVMODE", "PYTHONOPTIMIZE", "PYTHONWARNINGS"), "1"),
        "PYTHONPATH": "/theirs",
        "PATH": os.environ["PATH"],
    }
    HostEngine(2, theirs).run(request(tmp_path / "log", "host"))
    given = json.loads(call.read_text())
    assert not theirs.keys() - {"PYTHONPATH", "PATH"} & given["environment"].keys()
    assert given["environment"]["PYTHONPATH"] == "/theirs"
    assert given["environment"]["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] == "1"
    assert "filterwarnings=default" in given["arguments"]


@pytest.mark.parametrize(
    ("limits", "raised"),
    [((64, 4096), 4096), ((64, 512), 512), ((64, -1), 4096), ((8192, 8192), None), ((1024, 1024), None)],
)
def test_limit_of_open_files_is_raised(
    limits: tuple[int, int], raised: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, values: found.append(values[0]))
    engine.allow_open_files()
    assert found == ([raised] if raised else [])


def test_too_few_open_files_are_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    for started in (HostEngine(), LocalEngine(None)):  # type: ignore[arg-type]
        with pytest.raises(MatrixError, match="can't open enough files"):
            started.ready(["host"])
