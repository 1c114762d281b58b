"""Where the pytest processes of a run are started. On one machine: tox, one environment per base, in parallel.

The base `host` is the environment of this process itself.
The image bases have an engine of their own (matrix/execution/images.py).
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from matrix.errors import MatrixError
from matrix.planning.planned import Planned
from matrix.planning.rerun import RERUN
from matrix.provision import configuration, project
from matrix.provision import installed as environments
from matrix.provision.installed import PythonEnvironment
from matrix.provision.overlays import default_root
from matrix.provision.tox_environments import CELL_SETTINGS, base_name
from matrix.store import journal, night

# Seconds that tox and its pytest processes get after Ctrl-C to stop their ranks and close their journals.
STOP_S: Final = 4.0
RERUN_HERE: Final = "megatrix run --here"  # begins the line that runs a case of the base `host` again


@dataclass(frozen=True)
class Ending:
    """How an engine ended: `status` is 0 when every process did what it was there for.

    `refused` says of a base why nothing could be started on it: a fault of the machine, not of a case.
    """

    status: int = 0
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BaseContents:
    """What a base holds, the interpreter that its overlays are made with, and the digest of a base that is an image."""

    environment: PythonEnvironment
    interpreter: Path | None = None
    image: str = ""


class Engine(Protocol):
    """Starts one pytest process per base; each works off its part of the run's plan and writes its own journal."""

    def ready(self, bases: Collection[str]) -> None:
        """Raise MatrixError when nothing can be started on these bases, before a run is made."""

    def lacks(self, base: str) -> str:
        """Return what this machine lacks for a base and how to get it, "" when nothing is known to be missing."""

    def installed(self, base: str) -> BaseContents | None:
        """Return what a base that lacks nothing holds now, None where that can't be told before it is made."""

    def run(self, bases: Sequence[str], environ: Mapping[str, str], log: Path) -> Ending:
        """Run until all have ended."""


class Engines:
    """Two engines: `own` for the bases with these ids, `others` for the rest, before them."""

    def __init__(self, ids: Collection[str], own: Engine, others: Engine) -> None:
        self._ids, self._own, self._others = ids, own, others

    def ready(self, bases: Collection[str]) -> None:
        """Check each engine that there is something for."""
        for engine, its in self._parts(bases):
            engine.ready(its)

    def lacks(self, base: str) -> str:
        """Return what the engine of the base says."""
        return self._of(base).lacks(base)

    def installed(self, base: str) -> BaseContents | None:
        """Return what the engine of the base says."""
        return self._of(base).installed(base)

    def run(self, bases: Sequence[str], environ: Mapping[str, str], log: Path) -> Ending:
        """Run both, as far as there is something for them."""
        status = 0
        refused: dict[str, str] = {}
        for engine, its in self._parts(bases):
            ending = engine.run(its, environ, log)
            status = status or ending.status
            refused |= ending.refused
        return Ending(status, refused)

    def _parts(self, bases: Collection[str]) -> Iterator[tuple[Engine, list[str]]]:
        for engine, own in ((self._others, False), (self._own, True)):
            if its := [base for base in bases if (base in self._ids) is own]:
                yield engine, its

    def _of(self, base: str) -> Engine:
        return self._own if base in self._ids else self._others


class Tox:
    """tox's own parallel run over the environments of the bases; with `only_make` it makes them and runs nothing."""

    def __init__(self, jobs: int, *, only_make: bool = False) -> None:
        self._jobs, self._only_make = jobs, only_make

    def ready(self, bases: Collection[str]) -> None:
        """Raise MatrixError without a tox, or where the project's folder or settings can't be used."""
        tox_command(os.environ)
        project.folder()
        settings()

    def lacks(self, base: str) -> str:
        """Return "": what an environment needs, tox says as it makes it."""
        return ""

    def installed(self, base: str) -> BaseContents | None:
        """Return what the environment holds that tox made for the base, None when it made none yet."""
        folder = environment_folder(base)
        environment = environments.at(folder)
        return BaseContents(environment, folder / "bin" / "python") if environment else None

    def run(self, bases: Sequence[str], environ: Mapping[str, str], log: Path) -> Ending:
        """Run tox; what it prints goes to `log`. Its pytest processes stop when this process is gone (relay)."""
        names = ",".join(map(base_name, bases))
        command = [*tox_command(os.environ), "run-parallel", "--parallel-no-spinner", "-p", str(self._jobs)]
        command += ["--workdir", str(work_folder(os.environ)), "-c", str(project.folder() / "tox.ini"), "-e", names]
        command += ["--notest"] if self._only_make else []
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TOX_")}
        return Ending(run_process(command, {**environment, **settings(), **environ}, log))


class Here:
    """pytest with this interpreter, for the base `host`: what is installed beside it is the base."""

    def ready(self, bases: Collection[str]) -> None:
        """Raise MatrixError where the project's folder or settings can't be used."""
        project.folder()
        settings()

    def lacks(self, base: str) -> str:
        """Return "": the environment is as it is."""
        return ""

    def installed(self, base: str) -> BaseContents | None:
        """Return what is installed beside this interpreter."""
        return BaseContents(environments.current(), Path(sys.executable))

    def run(self, bases: Sequence[str], environ: Mapping[str, str], log: Path) -> Ending:
        """Run pytest, as a person does who stands in this environment; what it prints goes to `log`."""
        command = [sys.executable, "-m", "pytest", "tests/failures"]
        environment = {RERUN: RERUN_HERE, **os.environ, **CELL_SETTINGS, **settings(), **environ, "MEGATRIX_BASE": ""}
        return Ending(run_process(command, environment, log, project.folder()))


def run_process(command: Sequence[str], environment: Mapping[str, str], log: Path, folder: Path | None = None) -> int:
    """Run a process to its end and return its status; what it prints is added to `log`.

    A Ctrl-C is passed on; STOP_S later its process group is killed.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            start_new_session=True,  # one SIGINT from us, not a second one from the terminal
        )
        try:
            return process.wait()
        except BaseException:
            process.send_signal(signal.SIGINT)  # tox passes it on
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            raise


def settings() -> dict[str, str]:
    """Return the cache and the clones as variables: a cell starts in another folder than this process."""
    return {"MEGATRIX_CACHE": str(default_root()), **configuration.load().environment}


def tox_command(environ: Mapping[str, str]) -> list[str]:
    """Return the command that starts tox: the tox that runs us ($MEGATRIX_TOX, its interpreter), or our Python's."""
    interpreter = environ.get("MEGATRIX_TOX", "")
    if not interpreter and importlib.util.find_spec("tox") is None:
        raise MatrixError(
            "tox is needed to run", got=f"no tox in {sys.prefix}",
            fix="pip install 'megatrix[desk]'; without it, `megatrix run --here` runs this environment's own cases",
        )  # fmt: skip
    return [interpreter or sys.executable, "-m", "tox"]


def environment_folder(base: str) -> Path:
    """Return where tox keeps the environment of a base."""
    return work_folder(os.environ) / base_name(base)


def pending(folder: Path, bases: Collection[str]) -> list[Planned]:
    """Return the cases of these bases that the run in `folder` has no result of yet."""
    done = journal.read(folder).results
    cases = map(Planned.from_json, night.plan(folder))
    return [case for case in cases if case.cell.base in bases and case.key not in done]


def work_folder(environ: Mapping[str, str]) -> Path:
    """Return where tox keeps its environments: $TOX_WORK_DIR, which tox sets for what it runs, or the project's."""
    return Path(environ.get("TOX_WORK_DIR") or project.work_root())
