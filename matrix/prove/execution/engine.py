"""Engines, which start the pytest processes of a run. On one machine: tox, one environment per base, in parallel.

The base `host` is the environment of this process. The image bases have another engine (images.py).
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol

from matrix.ground.cases.machine_requirements import BaseOffer, offered
from matrix.ground.catalog.folders import default_root
from matrix.ground.catalog.machine import PythonEnvironment
from matrix.ground.catalog.model import Catalog, ReaderBase, Wheels
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.planned import Planned
from matrix.prove.planning.rerun import RERUN, RERUN_HERE
from matrix.prove.provision import configuration, project, te_wheels
from matrix.prove.provision.python_downloads import Pythons
from matrix.prove.provision.tox_environments import CELL_SETTINGS, VARIABLES, WITH_GPU_PACKAGES
from matrix.prove.store.stored_run import StoredRun
from matrix.read import kernel, scratch
from matrix.read.commands import CommandResult, python_module
from matrix.read.machine import compiler
from matrix.read.machine import installed as environments

STOP_S: Final = 4.0  # s after Ctrl-C, or at the end, for tox and pytest to stop their ranks and close their journals
NO_BASES: Final[Mapping[str, Wheels | ReaderBase]] = MappingProxyType({})


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


def offer_of(catalog: Catalog, engine: Engine, base: str) -> BaseOffer:
    """Return what a base offers to cases, by its contents where they are known."""
    lack = engine.lacks(base)
    contents = None if lack else engine.installed(base)
    packages, features = (contents.packages, contents.features) if contents else (None, None)
    clones = configuration.load().sources
    cuda = contents.torch_cuda if contents else None
    return offered(catalog, base, packages=packages, features=features, lack=lack, clones=clones, cuda=cuda)


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


class Tox:
    """tox's parallel run over the environments of the bases; with `only_make` it makes them and runs no case.

    `jobs` bases run at a time, and `workers` cases on each of them, in pytest-xdist's workers. A base that it has run
    runs again without tox, which takes 3 s to find its environment unchanged, with the variables that tox let through.
    `made` are the bases of the catalog by id, whose missing interpreters are downloaded; `say` receives notices of it.
    `environ` are the variables from which its processes get theirs.
    """

    def __init__(
        self,
        jobs: int,
        made: Mapping[str, Wheels | ReaderBase] = NO_BASES,
        *,
        workers: int = 1,
        only_make: bool = False,
        say: Callable[[str], None] = lambda text: None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._jobs, self._workers, self._made, self._only_make, self._say = jobs, workers, made, only_make, say
        self._environ = environ
        self._lacking: dict[str, str] = {}
        self._variables: dict[str, dict[str, str]] = {}  # those of the pytest process of each base that tox has run
        self._contents: dict[str, PythonEnvironment | None] = {}  # of each base that it has run: 60 ms of processor

    def ready(self, bases: Collection[str]) -> None:
        """Download missing interpreters where that is allowed.

        Raises MatrixError if tox is missing, or the project's folder or settings can't be used.
        """
        tox_command(os.environ)
        project.folder()
        settings()
        for base, entry in self._made.items():  # in the catalog's order: a download for one base may serve the next
            if base in bases and base not in self._variables:
                self._pythons.provide(entry)

    def lacks(self, base: str) -> str:
        """Return which Python is missing; what else an environment lacks is known when tox has tried to make it."""
        if base not in self._lacking:
            self._lacking[base] = self._pythons.lack(self._made[base]) if base in self._made else ""
        return self._lacking[base]

    @cached_property
    def _pythons(self) -> Pythons:
        return Pythons(configuration.load(), self._say)

    def installed(self, base: str) -> PythonEnvironment | None:
        """Return the contents of the base's tox environment, None if it does not exist yet."""
        if base not in self._variables:
            return environments.at(environment_folder(base))
        if base not in self._contents:
            self._contents[base] = environments.at(environment_folder(base))
        return self._contents[base]

    def run(self, request: EngineRequest) -> EngineResult:
        """Run tox with its output in `log`. Its pytest processes stop when this process ends (relay)."""
        base = request.bases[0]
        python = environment_folder(base) / "bin" / "python"
        if len(request.bases) == 1 and base in self._variables and python.exists():
            return run_pytest(python, self._workers, {**self._variables[base], **request.environ}, request.log)
        names = ",".join(request.bases)
        command = [*tox_command(os.environ), "run-parallel", "--parallel-no-spinner", "-p", str(self._jobs)]
        command += ["--workdir", str(work_folder(os.environ)), "-c", str(project.folder() / "tox.ini"), "-e", names]
        command += ["--notest"] if self._only_make else []
        environment = {key: value for key, value in self._environ.items() if not key.startswith("TOX_")}
        environment |= WITH_GPU_PACKAGES if self._only_make else {}
        with scratch.temporary("tox") as folder:  # not beside the log: it holds output with secrets
            results = Path(folder, "results.json")
            command += ["--result-json", str(results), "--", *distribution(self._workers)]
            environment |= {**settings(), **request.environ, VARIABLES: folder}
            status = run_process(command, environment, request.log)
            environments = json.loads(results.read_text("utf-8")).get("testenvs", {}) if results.is_file() else {}
            for ran in request.bases:
                if (variables := Path(folder, ran)).is_file():
                    self._variables[ran] = json.loads(variables.read_text("utf-8"))
        return EngineResult(status, unmade(request.bases, environments))


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
        project.folder()
        settings()

    def lacks(self, base: str) -> str:
        """Return "": the environment is used unchanged."""
        return ""

    def installed(self, base: str) -> PythonEnvironment | None:
        """Return the contents of this interpreter's environment."""
        return environments.current()

    def run(self, request: EngineRequest) -> EngineResult:
        """Run pytest in this environment with its output in `log`."""
        environment = {RERUN: RERUN_HERE, **self._environ, **request.environ, "MEGATRIX_BASE": ""}
        return run_pytest(Path(sys.executable), self._workers, environment, request.log)


def run_pytest(python: Path, workers: int, environ: Mapping[str, str], log: Path) -> EngineResult:
    """Run pytest over the failures with an interpreter, with its output in `log`."""
    command = python_module(python, "pytest", "tests/failures", *distribution(workers), folder=project.folder())
    environment = {**environ, **CELL_SETTINGS, **settings()}
    return EngineResult(run_process(command, environment, log))


def unmade(bases: Iterable[str], made: Mapping[str, Any]) -> dict[str, str]:
    """Return why tox could not make the environments of bases, by base, from the `testenvs` of its result JSON."""
    refused = {}
    for base in bases:
        environment = made.get(base, {})
        failed = [step for step in environment.get("setup", ()) if step["retcode"]]
        if failed and not environment.get("test"):
            complaint = CommandResult(failed[-1]["retcode"], failed[-1]["output"], failed[-1]["err"]).complaint
            why = " ".join(complaint.split())
            refused[base] = f"tox can't make its environment: {why}; see tox run -e {base} --notest"
    return refused


def distribution(workers: int) -> list[str]:
    """Return the options of pytest for this many cases at a time; without them, pytest needs no pytest-xdist."""
    return ["-n", str(workers)] if workers > 1 else []


def run_process(command: Sequence[str], environment: Mapping[str, str], log: Path) -> int:
    """Run a process in the project's folder to its end and return its status; its output is appended to `log`.

    A Ctrl-C is forwarded; STOP_S later its process group is killed. The process and its pytest processes follow this
    process if it dies (toxfile.py, interrupt.once), and keep their temporary files in its folder.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=project.folder(),
            env=following(environment),
            start_new_session=True,  # so that the terminal does not send a second SIGINT
        )
        try:
            return process.wait()
        except BaseException:
            stop(process)
            raise


def following(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a process that ends with this one, and keeps its temporary files in its folder."""
    return {**environ, kernel.PARENT: str(os.getpid()), **scratch.environment()}


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a process as Ctrl-C does, which tox forwards; STOP_S later kill its group."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def settings() -> dict[str, str]:
    """Return the cache and the clones as variables with absolute paths, and those of builds: a cell has no others."""
    passed = {"MEGATRIX_CACHE": str(default_root()), te_wheels.VARIABLE: str(te_wheels.wheels())}
    passed[compiler.PASSED] = json.dumps(compiler.build_variables())
    return {**passed, **configuration.load().environment}


def tox_command(environ: Mapping[str, str]) -> list[str]:
    """Return the command for tox: with the interpreter of the calling tox ($MEGATRIX_TOX), else with this one."""
    interpreter = environ.get("MEGATRIX_TOX", "")
    if not interpreter and importlib.util.find_spec("tox") is None:
        raise MatrixError(
            "tox is needed to run",
            got=f"no tox in {sys.prefix}",
            fix="pip install 'megatrix[desk]'; without it, `megatrix run --here` runs this environment's own cases",
        )
    return python_module(interpreter or sys.executable, "tox")


def environment_folder(base: str) -> Path:
    """Return the folder of a base's tox environment."""
    return work_folder(os.environ) / base


def work_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of tox's environments: $TOX_WORK_DIR, which tox sets for its commands, or the project's."""
    return Path(environ.get("TOX_WORK_DIR") or project.work_root())
