"""Asks both libraries in a process of its own: a driver that hangs or crashes takes nothing along, and is an answer.

No process that will fork may call cuInit: CUDA does not work in its children.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from matrix.content import ROOT
from matrix.nvidia import cuda, nvml
from matrix.nvidia.cuda import Cuda, Gpu
from matrix.nvidia.nvml import Card, Nvml
from matrix.ranks.kernel import die_with_parent

LIBRARIES: Final[Mapping[str, Callable[[], Iterator[Any]]]] = {"nvml": nvml.look, "cuda": cuda.look}
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
    libraries: Sequence[str] = tuple(LIBRARIES), python: str = sys.executable, seconds: float = ANSWER_S
) -> Devices:
    """Ask the libraries that a process of `python` loads, in this environment."""
    command = [
        str(Path(python).absolute()) if os.sep in python else python,
        "-m",
        "matrix.nvidia.devices",
        str(os.getpid()),
        *libraries,
    ]
    with tempfile.TemporaryFile() as out:
        try:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C at the terminal is ours to answer
            )
        except OSError as error:
            return _all(libraries, f"{python} can't be started: {error.strerror}")
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(GONE_S)
        out.seek(0)
        lines = out.read().decode(errors="replace").splitlines()
    if status is None:
        ended = f"did not return in {seconds:g} s"
    elif status < 0:
        ended = f"crashed: {signal.Signals(-status).name}"
    else:
        ended = f"ended its process with status {status}"
    told = read(lines, ended)
    silent = [name for name in libraries if name not in told]
    said = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
    return replace(_all(silent, f"{python} {ended}: {said}"), **told)


def _all(libraries: Sequence[str], problem: str) -> Devices:
    made = {"nvml": Nvml(problem=problem), "cuda": Cuda(problem=problem)}
    return Devices(**{name: made[name] for name in libraries})  # type: ignore[arg-type]  # each by its own name


def read(lines: Sequence[str], ended: str) -> dict[str, Any]:
    """Return what `main` printed, by library; `ended` is what became of a call that it was still in."""
    found: dict[str, Any] = {}
    for line in lines:
        try:
            told = json.loads(line)
            name, values = told["library"], told["told"]
        except (ValueError, KeyError, TypeError):
            continue  # what a library printed
        kind, of = (Nvml, Card) if name == "nvml" else (Cuda, Gpu)
        found[name] = kind(**{**values, "gpus": tuple(of(**gpu) for gpu in values["gpus"])})
    return {
        name: replace(told, problem=f"{told.asking} {ended}", asking="") if told.asking else told
        for name, told in found.items()
    }


@cache
def management() -> Nvml | None:
    """Ask NVML, once a process; None, and nothing is started, where its library can't be loaded."""
    return None if nvml.there() else ask(("nvml",)).nvml


def main(parent: int, libraries: Sequence[str]) -> None:
    """Print what each library tells, a line of JSON whenever more of it is known."""
    die_with_parent(parent)
    for name in libraries:
        for told in LIBRARIES[name]():
            sys.stdout.write(json.dumps({"library": name, "told": asdict(told)}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
