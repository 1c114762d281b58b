"""Run `python -m matrix run --json` with a separate results folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from matrix.ground.catalog.loading import load
from matrix.prove.provision.bases import Bases
from matrix.prove.provision.indexes import site_environment
from tests.schemas import records_of

ROOT = Path(__file__).resolve().parents[2]
# Seconds for one command; the first one makes environments (torch with its CUDA libraries: about a minute each). With a
# load of 40 on two cores the night of the image took more than 900 s.
COMMAND_S = 2400


@dataclass(frozen=True)
class Ran:
    """The exit status, records and output of a command."""

    status: int
    records: list[dict[str, Any]]
    stdout: str
    stderr: str

    def verdicts(self) -> dict[tuple[str, str, str], str]:
        """Return (torch, megatron-core, case) -> verdict."""
        return {
            (record["cell"]["stack"]["torch"], record["cell"]["stack"]["megatron-core"], record["case"]): record[
                "verdict"
            ]
            for record in self.records
        }


Megatrix = Callable[..., Ran]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files; its path is short, since paths of sockets are."""
    with tempfile.TemporaryDirectory(prefix="k-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def megatrix(tmp_path_factory: pytest.TempPathFactory) -> Megatrix:
    """Return a function that runs `megatrix run` with these arguments."""
    shared = tmp_path_factory.mktemp("out")

    def call(*arguments: str, out: Path = shared) -> Ran:
        done = subprocess.run(
            command(["--json", *arguments], out),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        return Ran(done.returncode, records_of(done.stdout), done.stdout, done.stderr)

    return call


def made_base(base: str) -> Path:
    """Return the folder of a base's environment, which is made if it is missing."""
    python = Bases(load()).provide(base).path
    assert python
    return python.parents[1]


def uv(*arguments: str) -> None:
    """Run uv with the site's indexes."""
    subprocess.run(
        [sys.executable, "-m", "uv", "--quiet", *arguments], env={**os.environ, **site_environment()}, check=True
    )


def command(arguments: Sequence[str], out: Path) -> list[str]:
    """Return the command line of `megatrix run` with results in `out`."""
    return [sys.executable, "-m", "matrix", "run", "--out", str(out), *arguments]


def started(out: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start `megatrix run` in a process group of its own."""
    return subprocess.Popen(
        command(arguments, out), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def wait_for_first_result(process: subprocess.Popen[str]) -> None:
    """Wait for the first result of the run, "[1/3] ...". With --json there is none before the end."""
    assert process.stdout is not None
    next(line for line in process.stdout if line.startswith("["))


def processes(mark: str) -> dict[int, str]:
    """Return by pid the command lines of processes with `mark`, such as "NAME=VALUE", in their first environment."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            ours = mark.encode() in (folder / "environ").read_bytes()
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if ours and line:
            found[int(folder.name)] = line
    return found


def remaining(mark: str, limit_s: float) -> dict[int, str]:
    """Return the processes with `mark` when all of them have ended, or after `limit_s`."""
    end = time.monotonic() + limit_s
    while (found := processes(mark)) and time.monotonic() < end:
        time.sleep(0.05)  # no event exists for the end of processes that are no children
    return found
