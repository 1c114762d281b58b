"""Engines, which start the pytest processes of a run. On one machine: one process per base, in parallel.

The base `host` is the environment of this process. The image bases have another engine (inside.py).
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from multiprocessing.connection import wait
from pathlib import Path
from typing import Final, Protocol

from matrix.ground.cases.machine_requirements import BaseOffer, offered
from matrix.ground.catalog.folders import default_root
from matrix.ground.catalog.machine import COMPILED, PythonEnvironment
from matrix.ground.catalog.model import Catalog
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.planned import Planned
from matrix.prove.planning.rerun import RERUN, RERUN_HERE
from matrix.prove.provision import host, project, te_wheels
from matrix.prove.provision.bases import PYTEST_SETTINGS, Bases
from matrix.prove.provision.indexes import uv_variable
from matrix.prove.store.stored_run import StoredRun
from matrix.read import kernel, scratch
from matrix.read.commands import python_module
from matrix.read.machine import installed

STOP_S: Final = 4.0  # s after Ctrl-C, or at the end, for pytest to stop its ranks and close its journal
# The variables of this process that a cell gets. Others, such as PYTHONPATH, NCCL_* and those of a job's launcher,
# would change what it runs.
PASSED: Final = (
    *("MEGATRIX_*", "PATH", "HOME", "LANG", "LANGUAGE", "LC_*", "TERM", "NO_COLOR", "TMPDIR", "LD_LIBRARY_PATH"),
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),  # on a shared machine they select the GPUs of this user
    *("CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS"),
    # uv and pip, for overlays: their settings, interpreters, caches, proxies and certificates.
    *("UV_*", "PIP_*", "PYENV_ROOT", "XDG_CACHE_HOME", "XDG_CONFIG_*", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "NETRC"),
    *("SSL_*", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "*_PROXY", "*_proxy"),
)

# Where Python finds its modules, of the host's environment; no other PYTHON* is passed to pytest.
PYTHON_PASSED: Final = frozenset({"PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONPLATLIBDIR"})
OPEN_FILES: Final = 4096  # of a process, at a time
FEWEST_FILES: Final = 256  # below it, cases of two ranks fail


@dataclass(frozen=True)
class EngineResult:
    """The result of an engine: `status` is 0 if every process succeeded.

    `refused` maps a base to the reason why no process could start on it: a fault of the machine, not of a case.
    `out_of_time`: it was stopped at the time limit of the run.
    """

    status: int = 0
    refused: Mapping[str, str] = field(default_factory=dict)
    out_of_time: bool = False


@dataclass(frozen=True)
class EngineRequest:
    """What an engine runs: the cases of `run` on these bases that have no result.

    The output of its processes is appended to `log`; they send starts and records to the address `relay`.
    """

    bases: Sequence[str]
    run: StoredRun
    log: Path
    relay: str = ""

    @property
    def environ(self) -> dict[str, str]:
        """Return the variables of its pytest processes."""
        return {"MEGATRIX_RUN": str(self.run.folder.resolve()), "MEGATRIX_RELAY": self.relay}

    def pending(self, *bases: str) -> list[Planned]:
        """Return the cases without a result, of these bases only if any are given."""
        return self.run.pending(bases or self.bases)


class Engine(Protocol):
    """Starts one pytest process per base; each runs its part of the plan and writes its own journal."""

    def ready(self, bases: Collection[str]) -> None:
        """Raise MatrixError if nothing can be started on these bases; called before a run is created."""

    def lacks(self, base: str) -> str:
        """Return what this machine lacks for a base and how to install it, "" if nothing is known to be missing."""

    def installed(self, base: str) -> PythonEnvironment | None:
        """Return the contents of a base that lacks nothing, None if they are unknown before the base is made."""

    def run(self, request: EngineRequest) -> EngineResult:
        """Run the bases and return after all processes have ended."""


def offer_of(catalog: Catalog, engine: Engine, base: str, settings: host.Configuration) -> BaseOffer:
    """Return what a base offers to cases, by its contents where they are known."""
    lack = engine.lacks(base)
    contents = None if lack else engine.installed(base)
    return offered(catalog, base, contents, lack=lack, clones=settings.sources)


class Engines:
    """Two engines: `own` for the bases with these ids, `others` for the rest. `others` runs first."""

    def __init__(self, ids: Collection[str], own: Engine, others: Engine) -> None:
        self._ids, self._own, self._others = ids, own, others

    def ready(self, bases: Collection[str]) -> None:
        """Check each engine that has bases."""
        for engine, part in self._parts(bases):
            engine.ready(part)

    def lacks(self, base: str) -> str:
        """Return what the engine of the base reports as missing."""
        return self._of(base).lacks(base)

    def installed(self, base: str) -> PythonEnvironment | None:
        """Return the contents that the engine of the base reports."""
        return self._of(base).installed(base)

    def run(self, request: EngineRequest) -> EngineResult:
        """Run each engine that has bases."""
        results = [engine.run(replace(request, bases=part)) for engine, part in self._parts(request.bases)]
        status = next((result.status for result in results if result.status), 0)
        return EngineResult(status, {base: why for result in results for base, why in result.refused.items()})

    def _parts(self, bases: Collection[str]) -> list[tuple[Engine, list[str]]]:
        engines = {False: self._others, True: self._own}
        parts = {is_own: [base for base in bases if (base in self._ids) is is_own] for is_own in engines}
        return [(engines[is_own], part) for is_own, part in parts.items() if part]

    def _of(self, base: str) -> Engine:
        return self._own if base in self._ids else self._others


class LocalEngine:
    """pytest in the environments of `bases`, made where they are missing; with `only_make` it runs no case.

    `jobs` bases run at a time, while one more is made, and `workers` cases on each of them, in pytest-xdist's workers.
    `environ` are the variables from which its processes get theirs (PASSED).
    """

    def __init__(
        self,
        bases: Bases,
        jobs: int = 1,
        *,
        workers: int = 1,
        only_make: bool = False,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._bases, self._jobs, self._workers, self._only_make = bases, jobs, workers, only_make
        self._environ = environ

    def ready(self, bases: Collection[str]) -> None:
        """Download missing interpreters where that is allowed.

        Raises MatrixError if uv is missing and needed, or the project's folder or settings can't be used.
        """
        prepare(self._environ)
        self._bases.ready(bases)

    def lacks(self, base: str) -> str:
        """Return which Python is missing; what else an environment lacks is known when uv has tried to make it."""
        return self._bases.lack(base)

    def installed(self, base: str) -> PythonEnvironment | None:
        """Return the contents of the base's environment, None if it does not exist yet."""
        return self._bases.installed(base)

    def run(self, request: EngineRequest) -> EngineResult:
        """Make each environment, and run its cases while the next one is made; the output is in `log`."""
        refused, statuses = dict[str, str](), list[int]()
        with stopped_on_error() as running:
            for base in request.bases:
                statuses += ended(running, self._jobs - 1)
                try:
                    python = self._bases.provide(base).path
                except MatrixError as error:
                    refused[base] = error.brief
                    continue
                if python and not self._only_make:
                    environ = passed(self._environ, python) | settings(self._environ) | request.environ
                    environ["MEGATRIX_BASE"] = base
                    running.append(start_pytest(python, self._workers, environ, request.log))
            statuses += ended(running, 0)
        return EngineResult(next(filter(None, statuses), 0), refused)


class HostEngine:
    """pytest with this interpreter, for the base `host`: the packages of this environment."""

    def __init__(self, workers: int = 1, environ: Mapping[str, str] = os.environ) -> None:
        self._workers, self._environ = workers, environ

    def ready(self, bases: Collection[str]) -> None:
        """Raise MatrixError if the project's folder or settings can't be used, or pytest-xdist is missing for -n."""
        if self._workers > 1 and importlib.util.find_spec("xdist") is None:
            raise MatrixError(
                "-n needs pytest-xdist",
                got=f"no pytest-xdist in {sys.prefix}",
                fix="pip install pytest-xdist, or leave -n out",
            )
        prepare(self._environ)

    def lacks(self, base: str) -> str:
        """Return "": the environment is used unchanged."""
        return ""

    def installed(self, base: str) -> PythonEnvironment | None:
        """Return the contents of this interpreter's environment."""
        return installed.current()

    def run(self, request: EngineRequest) -> EngineResult:
        """Run pytest in this environment with its output in `log`."""
        environ = {
            RERUN: RERUN_HERE,
            **self._environ,
            **settings(self._environ),
            **request.environ,
            "MEGATRIX_BASE": "",
        }
        with stopped_on_error() as running:
            running.append(start_pytest(Path(sys.executable), self._workers, environ, request.log))
            (status,) = ended(running, 0)
        return EngineResult(status)


def passed(environ: Mapping[str, str], python: Path) -> dict[str, str]:
    """Return those of this process's variables that a cell gets, and its uv, which makes overlays.

    The programs of the cell's base come first on PATH.
    """
    variables = {name: environ[name] for name in environ if any(fnmatchcase(name, pattern) for pattern in PASSED)}
    path = os.pathsep.join((str(python.parent), environ.get("PATH", os.defpath)))
    return {**variables, **uv_variable(environ), "PATH": path}


def start_pytest(python: Path, workers: int, environ: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start pytest over the failures with an interpreter, with its output in `log`."""
    words = ["tests/failures", "-p", "no:cacheprovider", *distribution(workers)]
    command = python_module(python, "pytest", *words, folder=project.folder())
    return start(command, {**neutral(environ), **PYTEST_SETTINGS}, log)


def neutral(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that change how pytest and Python run: PYTHONOPTIMIZE drops assertions."""
    changing = (name for name in environ if name.startswith(("PYTEST_", "PYTHON")) and name not in PYTHON_PASSED)
    return {name: environ[name] for name in environ.keys() - {*changing}}


def prepare(environ: Mapping[str, str]) -> None:
    """Raise MatrixError if the project's folder, its settings or the limit of open files can't be used."""
    project.folder()
    allow_open_files()
    settings(environ)


def allow_open_files() -> None:
    """Let processes that this one starts open OPEN_FILES files, or as many as the machine allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < FEWEST_FILES:
        raise MatrixError(
            "cases can't open enough files here",
            got=f"ulimit -Hn {hard}",
            expected=f"at least {FEWEST_FILES}",
            fix="raise the limit of open files (/etc/security/limits.conf), or start a new shell",
        )


def distribution(workers: int) -> list[str]:
    """Return the options of pytest for this many cases at a time; without them, pytest needs no pytest-xdist.

    A warning of the host's packages is no error, as it is in this project's own tests.
    """
    return ["-o", "filterwarnings=default", *(["-p", "xdist", "-n", str(workers)] if workers > 1 else [])]


def start(command: Sequence[str], environ: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process in the project's folder; its output is appended to `log`.

    It follows this process if that dies (interrupt.once), and keeps its temporary files in its folder.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=project.folder(),
            env=following(environ),
            start_new_session=True,  # so that the terminal does not send a second SIGINT
        )


def ended(running: list[subprocess.Popen[bytes]], most: int) -> list[int]:
    """Wait until at most `most` processes run; remove those that ended and return their statuses."""
    statuses = []
    while len(running) > most:
        handles = {os.pidfd_open(process.pid): process for process in running}
        try:
            for handle in wait([*handles]):
                assert isinstance(handle, int)
                running.remove(handles[handle])
                statuses.append(handles[handle].wait())
        finally:
            for descriptor in handles:
                os.close(descriptor)
    return statuses


def following(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a process that ends with this one, and keeps its temporary files in its folder."""
    return {**environ, kernel.PARENT: str(os.getpid()), **scratch.environment()}


@contextmanager
def stopped_on_error() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Yield a list for processes; those that are in it when the block raises, as at Ctrl-C, are stopped."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        yield running
    except BaseException:
        stop(running)
        raise


def stop(running: Collection[subprocess.Popen[bytes]]) -> None:
    """Stop processes as Ctrl-C does; STOP_S later kill the groups of those that go on."""
    for process in running:
        process.send_signal(signal.SIGINT)
    end = time.monotonic() + STOP_S
    for process in running:
        try:
            process.wait(max(end - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def settings(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the cache and the clones as variables with absolute paths, and those of builds: a cell has no others."""
    return {
        "MEGATRIX_CACHE": str(default_root(environ)),
        te_wheels.VARIABLE: str(te_wheels.wheels(environ)),
        **({COMPILED: folder} if (folder := environ.get(COMPILED)) else {}),
        installed.PASSED: json.dumps(installed.build_variables(environ)),
        **host.load_configuration(environ).environment,
    }
