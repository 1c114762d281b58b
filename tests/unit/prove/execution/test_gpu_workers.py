"""Processes that share eight stand-in GPUs: two runs, pytest-xdist's workers, and one that is killed.

Each case fails if another one uses a GPU of its own meanwhile (gpu_plan.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from matrix.prove.provision.project import ROOT
from matrix.prove.store import stored_run

pytest.importorskip("xdist", reason="the tests of the project install it")
HANG_S = 300.0  # limit for hanging tests
CASES = 8
FEWER = ("-k", "not 0.7.0")


@dataclass
class Machine:
    """A folder with the locks and the cases, and the runs of pytest there."""

    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, name: str, *arguments: str, killed: str = "") -> subprocess.Popen[str]:
        """Start pytest with an output folder of this name; `killed` names a case that ends its process."""
        plugins = ("xdist.plugin", "matrix.prove.execution.plugin", "tests.unit.prove.execution.gpu_plan")
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *(word for one in plugins for word in ("-p", one)), "break", *arguments],
            cwd=self.folder,
            env={
                **os.environ,
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                "PYTHONPATH": str(ROOT),
                "GPU_PLAN": str(self.folder),
                "KILLED": killed,
                "MEGATRIX_GPU_LOCKS": str(self.folder / "locks"),
                "MEGATRIX_OUT": str(self.folder / name),
                "MEGATRIX_BASE": "torch-2.4.0",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def verdicts(self, name: str) -> Counter[str]:
        """Return the verdicts of the run in an output folder, counted."""
        (run,) = (self.folder / name / "runs").iterdir()
        return Counter(record.verdict.value for record in stored_run.read(run).records)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    for name in ("break", "used"):
        (tmp_path / name).mkdir()
    (tmp_path / "break" / "failure.toml").touch()
    (tmp_path / "pytest.ini").touch()
    made = Machine(tmp_path)
    yield made
    for process in made.started:
        with process:
            process.kill()


def test_runs_and_workers_never_share_a_gpu(machine: Machine) -> None:
    """Two runs at once, one of them with four workers."""
    runs = {
        name: machine.start(name, *FEWER, *options) for name, options in (("one", ("-n", "4")), ("two", ("-n", "0")))
    }
    for name, process in runs.items():
        output, _ = process.communicate(timeout=HANG_S)
        assert (process.returncode, machine.verdicts(name)) == (0, {"learned": CASES}), output
    ran = (machine.folder / "ran").read_text().split()
    assert Counter(ran[1::2]) == {str(size): 2 * CASES // 4 for size in (1, 2, 4, 8)}
    assert not list((machine.folder / "locks").glob("claim-*"))


def test_killed_worker_frees_all_its_gpus(machine: Machine) -> None:
    """It held all eight: every other case needs some of them."""
    process = machine.start("one", "-n", "2", *FEWER, killed="gpus8")
    output, _ = process.communicate(timeout=HANG_S)
    assert machine.verdicts("one") == {"learned": 6, "not-reached": 2}, output


def test_workers_take_the_largest_cases_first(machine: Machine) -> None:
    process = machine.start("one", "-n", "1", *FEWER)
    output, _ = process.communicate(timeout=HANG_S)
    sizes = [int(size) for size in (machine.folder / "ran").read_text().split()[1::2]]
    assert sizes == sorted(sizes, reverse=True), output
