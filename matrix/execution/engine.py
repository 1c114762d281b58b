"""Where the pytest processes of a run are started. On one machine: tox, one environment per base, in parallel.

The image bases have an engine of their own (matrix/execution/images.py).
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from matrix.errors import MatrixError
from matrix.planning.planned import Planned
from matrix.provision import installed as environments
from matrix.provision.installed import Environment
from matrix.provision.project import ROOT
from matrix.provision.tox_environments import base_name
from matrix.store import journal, night

# Seconds that tox and its pytest processes get after Ctrl-C to stop their ranks and close their journals.
STOP_S: Final = 4.0


@dataclass(frozen=True)
class Ending:
    """How an engine ended: `status` is 0 when every process did what it was there for.

    `refused` says of a base why nothing could be started on it: a fault of the machine, not of a case.
    """

    status: int = 0
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Installed:
    """What a base holds, the interpreter that its overlays are made with, and the digest of a base that is an image."""

    environment: Environment
    interpreter: Path | None = None
    image: str = ""


class Engine(Protocol):
    """Starts one pytest process per base; each works off its part of the run's plan and writes its own journal."""

    def lacks(self, base: str) -> str:
        """Return what this machine lacks for a base and how to get it, "" when nothing is known to be missing."""

    def installed(self, base: str) -> Installed | None:
        """Return what a base that lacks nothing holds now, None where that can't be told before it is made."""

    def run(self, bases: Sequence[str], environ: Mapping[str, str], log: Path) -> Ending:
        """Run until all have ended."""


class Engines:
    """Two engines: `images` for the bases that are images, by id, `others` for the rest, before them."""

    def __init__(self, ids: Collection[str], images: Engine, others: Engine) -> None:
        self._ids, self._images, self._others = ids, images, others

    def lacks(self, base: str) -> str:
        """Ask the one that the base belongs to."""
        return self._of(base).lacks(base)

    def installed(self, base: str) -> Installed | None:
        """Ask the one that the base belongs to."""
        return self._of(base).installed(base)

    def run(self, bases: Sequence[str], environ: Mapping[str, str], log: Path) -> Ending:
        """Run both, as far as there is something for them."""
        status = 0
        refused: dict[str, str] = {}
        for engine, inside in ((self._others, False), (self._images, True)):
            its = [base for base in bases if (base in self._ids) is inside]
            if its:
                ending = engine.run(its, environ, log)
                status = status or ending.status
                refused |= ending.refused
        return Ending(status, refused)

    def _of(self, base: str) -> Engine:
        return self._images if base in self._ids else self._others


class Tox:
    """tox's own parallel run over the environments of the bases; with `only_make` it makes them and runs nothing."""

    def __init__(self, jobs: int, *, only_make: bool = False) -> None:
        self._jobs, self._only_make = jobs, only_make

    def lacks(self, base: str) -> str:
        """Return "": what an environment needs, tox says as it makes it."""
        return ""

    def installed(self, base: str) -> Installed | None:
        """Return what the environment holds that tox made for the base, None when it made none yet."""
        folder = environment_folder(base)
        environment = environments.at(folder)
        return Installed(environment, folder / "bin" / "python") if environment else None

    def run(self, bases: Sequence[str], environ: Mapping[str, str], log: Path) -> Ending:
        """Run tox; what it prints goes to `log`. After Ctrl-C it is given STOP_S, then its process group is killed.

        Its pytest processes notice by the relay when this process is killed, and stop.
        """
        names = ",".join(map(base_name, bases))
        command = [*tox_command(os.environ), "run-parallel", "--parallel-no-spinner", "-p", str(self._jobs)]
        command += ["--workdir", str(work_folder(os.environ)), "-c", str(ROOT / "tox.ini"), "-e", names]
        command += ["--notest"] if self._only_make else []
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TOX_")} | dict(environ)
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # one SIGINT from us, not a second one from the terminal
            )
            try:
                return Ending(process.wait())
            except BaseException:
                process.send_signal(signal.SIGINT)  # tox passes it on
                try:
                    process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                raise


def tox_command(environ: Mapping[str, str]) -> list[str]:
    """Return the command that starts tox: the tox that runs us ($MEGATRIX_TOX, its interpreter), or our Python's."""
    interpreter = environ.get("MEGATRIX_TOX", "")
    if not interpreter and importlib.util.find_spec("tox") is None:
        raise MatrixError("tox is needed to run", got=f"no tox in {sys.prefix}", fix="pip install 'megatrix[desk]'")
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
    """Return where tox keeps its environments: $TOX_WORK_DIR, which tox sets for what it runs, or .tox."""
    return Path(environ.get("TOX_WORK_DIR") or ROOT / ".tox")
