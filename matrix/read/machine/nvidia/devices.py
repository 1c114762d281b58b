"""Query each library in a separate process, so that a driver that hangs or crashes is reported as such.

No process that will fork may call cuInit: CUDA does not work in its children. The process runs any Python >= 3.9, with
or without packages: this module imports the standard library only, and modules of this project that need no more.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from matrix import PACKAGE
from matrix.ground.catalog.machine import Cuda, Gpu, Nvml
from matrix.read.commands import python_module
from matrix.read.kernel import die_with_parent
from matrix.read.machine.nvidia import cuda, nvml

ROOT: Final = PACKAGE.parent  # project folder, from which the process imports this module
LIBRARIES: Final[Mapping[str, Callable[[], Iterator[Any]]]] = {"nvml": nvml.look, "cuda": cuda.look}
KINDS: Final[Mapping[str, Any]] = {"nvml": Nvml, "cuda": Cuda}
# Seconds for a query: 0.1 s without a driver, one or two with one, about ten for eight GPUs without a persistence
# daemon.
ANSWER_S: Final = 30.0
GONE_S: Final = 1.0  # seconds for a killed process to end; one that hangs in the kernel driver never does


@dataclass(frozen=True)
class Devices:
    """The facts of both libraries."""

    nvml: Nvml = field(default_factory=Nvml)
    cuda: Cuda = field(default_factory=Cuda)


def query(
    libraries: Iterable[str] = tuple(LIBRARIES), python: str = sys.executable, seconds: float = ANSWER_S
) -> Devices:
    """Query libraries, each in a process of `python` with this environment, at the same time.

    Where this Python can't load NVML, which has no effect on the driver, no process is started for it.
    """
    interpreter = str(Path(python).absolute()) if os.sep in python else python
    missing = nvml.there() if python == sys.executable else ""
    facts: dict[str, Any] = {"nvml": Nvml(problem=missing)} if missing else {}
    with ExitStack() as started:
        queried = [name for name in libraries if name not in facts]
        results = {name: started.enter_context(_querying(name, interpreter)) for name in queried}
        ends = time.monotonic() + seconds
        return Devices(**facts, **{name: result(ends) for name, result in results.items()})


@contextmanager
def _querying(library: str, python: str) -> Iterator[Callable[[float], Any]]:
    """Start the process that queries a library; yield a function that waits for its result until a time.monotonic()."""
    import tempfile  # not in the process of a library, which lasts 0.05 s

    begun = time.monotonic()
    with tempfile.TemporaryFile() as out:
        try:
            process = subprocess.Popen(
                python_module(python, "matrix.read.machine.nvidia.devices", str(os.getpid()), library, folder=ROOT),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C at the terminal must reach this process only
            )
        except OSError as error:
            problem = f"{python} can't be started: {error.strerror}"
            yield lambda ends: KINDS[library](problem=problem, silent=True)
            return

        def result(ends: float) -> Any:
            try:
                status = process.wait(max(ends - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                ended = f"did not return in {ends - begun:.0f} s"
            else:
                ended = f"crashed: {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
            out.seek(0)
            lines = out.read().decode(errors="replace").splitlines()
            reply = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
            silent = KINDS[library](problem=f"{python} {ended}: {reply}", silent=True)
            return read(library, lines, ended) or silent

        try:
            yield result
        finally:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(GONE_S)


def read(library: str, lines: Iterable[str], ended: str) -> Nvml | Cuda | None:
    """Return the last facts that `main` printed of a library; `ended` is how a call that did not return ended."""
    report = None
    for line in lines:
        try:
            facts = json.loads(line)[library]
            report = KINDS[library](**{**facts, "gpus": tuple(Gpu(**gpu) for gpu in facts["gpus"])})
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # output of a library
    return replace(report, problem=f"{report.asking} {ended}", asking="") if report and report.asking else report


@cache
def management() -> Nvml | None:
    """Query NVML, once per process; return None, without starting a process, where the library can't be loaded."""
    return None if nvml.there() else query(("nvml",)).nvml


@cache
def user_mode() -> Cuda:
    """Query the user-mode driver that ranks load, once per process, in another: none may fork after cuInit."""
    return query(("cuda",)).cuda


def main(parent: int, library: str) -> None:
    """Print the facts of a library: a line of JSON whenever more is known."""
    die_with_parent(parent)
    for facts in LIBRARIES[library]():
        sys.stdout.write(json.dumps({library: asdict(facts)}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
