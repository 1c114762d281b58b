"""Where the pytest processes of a run are started. On one machine: tox, one environment per base, in parallel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from matrix.content import ROOT
from matrix.environments import base_name

# Seconds that tox and its pytest processes get after Ctrl-C to stop their ranks and close their journals.
STOP_S: Final = 4.0


class Engine(Protocol):
    """Starts one pytest process per base; each works off its part of the run's plan and writes its own journal."""

    def run(self, bases: Sequence[str], environ: Mapping[str, str], log: Path) -> int:
        """Run until all have ended; return 0 when every process did what it was there for."""


class Tox:
    """tox's own parallel run over the environments of the bases."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs

    def run(self, bases: Sequence[str], environ: Mapping[str, str], log: Path) -> int:
        """Run tox; what it prints goes to `log`. After Ctrl-C it is given STOP_S, then its process group is killed."""
        names = ",".join(map(base_name, bases))
        tox = os.environ.get("MEGATRIX_TOX", sys.executable)  # the interpreter whose tox runs us, if tox runs us
        command = [tox, "-m", "tox", "run-parallel", "--parallel-no-spinner", "-p", str(self._jobs)]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TOX_")} | dict(environ)
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*command, "-c", str(ROOT / "tox.ini"), "-e", names],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # one SIGINT from us, not a second one from the terminal
            )
            try:
                return process.wait()
            except BaseException:
                os.killpg(process.pid, signal.SIGINT)
                try:
                    process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                raise
