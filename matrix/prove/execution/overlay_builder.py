"""Builds overlays in a process beside the cases that need none of them: Transformer Engine takes minutes.

The overlays' own locks make a case wait for the one that it needs.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from matrix import PACKAGE
from matrix.ground.catalog.codec import decode, encode
from matrix.ground.catalog.folders import default_root
from matrix.ground.errors import MatrixError
from matrix.prove.provision.overlays import Overlays, OverlaySpec
from matrix.read.commands import STOP_S, python_code
from matrix.read.kernel import die_with_parent

Builds = Mapping[str, tuple[OverlaySpec, ...]]  # overlays with a build of Transformer Engine, by the keys of the cases

LOG: Final = "builds.log"  # in the folder of the run
_CODE: Final = "from matrix.prove.execution import overlay_builder; overlay_builder.main()"


class OverlayBuilder:
    """The process that builds overlays, one after another, and ends with this one; its output is in `log`."""

    def __init__(self, specs: Collection[OverlaySpec], log: Path) -> None:
        searched = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]))
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                python_code(sys.executable, _CODE),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": searched},
                start_new_session=True,  # a group of its own, which is ended with its compilers
                preexec_fn=partial(die_with_parent, os.getpid()),
            )
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError), self._process.stdin as specified:
            specified.write(json.dumps(encode(tuple(specs))).encode())

    def wait(self) -> int:
        """Return the exit status of the process after its end."""
        return self._process.wait()

    def stop(self) -> None:
        """End the process and the compilers that it started."""
        for number in (signal.SIGINT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(self._process.pid, number)
                self._process.wait(3 * STOP_S)  # it ends its own command first, which takes up to STOP_S
                return


def main() -> None:
    """Build the overlays that standard input specifies; what fails is reported by the cases that need it."""
    for spec in decode(tuple[OverlaySpec, ...], json.load(sys.stdin)):
        try:
            text = f"built {Overlays(default_root()).provide(spec).path}"
        except MatrixError as error:
            text = str(error)
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
