"""Asks each library in a process of its own: a driver that hangs or crashes takes nothing along, and is an answer.

No process that will fork may call cuInit: CUDA does not work in its children. The process is one of any Python from 3.9
on, with or without packages: what is imported here is the standard library and this project's own that needs no more.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from matrix.provision.kernel import die_with_parent
from matrix.provision.nvidia import cuda, nvml
from matrix.provision.nvidia.cuda import Cuda, CudaDevice
from matrix.provision.nvidia.nvml import Card, Nvml

ROOT: Final = Path(__file__).resolve().parents[3]  # of the project, where the process finds this module
LIBRARIES: Final[Mapping[str, Callable[[], Iterator[Any]]]] = {"nvml": nvml.look, "cuda": cuda.look}
KINDS: Final[Mapping[str, Any]] = {"nvml": Nvml, "cuda": Cuda}
GPUS: Final[Mapping[str, Any]] = {"nvml": Card, "cuda": CudaDevice}
# Seconds for the answer: 0.1 s without a driver, a second or two with one; some ten where no persistence daemon keeps
# eight GPUs awake.
ANSWER_S: Final = 30.0
GONE_S: Final = 1.0  # for a process that is killed to go; one that the driver holds in the kernel never does


@dataclass(frozen=True)
class Devices:
    """What both libraries said."""

    nvml: Nvml = field(default_factory=Nvml)
    cuda: Cuda = field(default_factory=Cuda)


def ask(
    libraries: Iterable[str] = tuple(LIBRARIES), python: str = sys.executable, seconds: float = ANSWER_S
) -> Devices:
    """Ask the libraries that a process of `python` loads, in this environment, at the same time."""
    interpreter = str(Path(python).absolute()) if os.sep in python else python
    with ExitStack() as started:
        answers = {name: started.enter_context(asked(name, interpreter)) for name in libraries}
        ends = time.monotonic() + seconds
        return Devices(**{name: answer(ends) for name, answer in answers.items()})


@contextmanager
def asked(library: str, python: str) -> Iterator[Callable[[float], Any]]:
    """Start the process that asks a library; yield what waits for its answer until a time (time.monotonic)."""
    begun = time.monotonic()
    with tempfile.TemporaryFile() as out:
        try:
            process = subprocess.Popen(
                [python, "-m", "matrix.provision.nvidia.devices", str(os.getpid()), library],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C at the terminal is ours to answer
            )
        except OSError as error:
            problem = f"{python} can't be started: {error.strerror}"
            yield lambda ends: KINDS[library](problem=problem, silent=True)
            return

        def answer(ends: float) -> Any:
            try:
                status = process.wait(max(ends - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                ended = f"did not return in {ends - begun:.0f} s"
            else:
                ended = f"crashed: {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
            out.seek(0)
            lines = out.read().decode(errors="replace").splitlines()
            said = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
            silent = KINDS[library](problem=f"{python} {ended}: {said}", silent=True)
            return read(library, lines, ended) or silent

        try:
            yield answer
        finally:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(GONE_S)


def read(library: str, lines: Iterable[str], ended: str) -> Nvml | Cuda | None:
    """Return the last that `main` printed of a library; `ended` is what became of a call that it was still in."""
    found = None
    for line in lines:
        try:
            told = json.loads(line)[library]
        except (ValueError, KeyError, TypeError):
            continue  # what a library printed
        gpus = tuple(GPUS[library](**gpu) for gpu in told["gpus"])
        found = KINDS[library](**{**told, "gpus": gpus})
    return replace(found, problem=f"{found.asking} {ended}", asking="") if found and found.asking else found


@cache
def management() -> Nvml | None:
    """Ask NVML, once a process; None, and nothing is started, where its library can't be loaded."""
    return None if nvml.there() else ask(("nvml",)).nvml


def main(parent: int, library: str) -> None:
    """Print what a library tells, a line of JSON whenever more of it is known."""
    die_with_parent(parent)
    for told in LIBRARIES[library]():
        sys.stdout.write(json.dumps({library: asdict(told)}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
