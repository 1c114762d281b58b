"""The overhead of a cell on Slurm: 2,000 cells planned, submitted as arrays and reported.

    sudo python bench/bench_slurm.py [--cells 2000]

Needs root and Debian's slurmctld, slurmd and slurm-client; brings up the two nodes of tests/slurm/cluster.py on this
host, 4 tasks at a time. The cells do nothing (bench/noop.py). For comparison the same cells run in one pytest process
on this machine. Times are wall-clock seconds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from matrix.ground.catalog.failure import Expectation, Level
from matrix.ground.catalog.loading import load
from matrix.ground.catalog.machine import PythonEnvironment
from matrix.ground.catalog.stack import DRIVER
from matrix.ground.verdicts.planned import Planned
from matrix.prove.execution.engine import Engine, EngineRequest, EngineResult, LocalEngine
from matrix.prove.execution.runner import Events, Request, execute
from matrix.prove.execution.slurm.client import Commands
from matrix.prove.execution.slurm.queue import ClusterSite
from matrix.prove.execution.slurm.slurm_engine import Slurm
from matrix.prove.planning.night import everything
from matrix.prove.provision import host
from matrix.prove.provision.bases import Bases
from matrix.prove.provision.project import ROOT
from tests.slurm.cluster import Cluster

BASE = "no-torch"


def cells(count: int) -> list[Planned]:
    """Return `count` cases of one failure at level contract, on as many cells."""
    first = next(item for item in everything(load(), (Level.CONTRACT,)) if item.cell.base == BASE)
    works = replace(first, expectation=Expectation.WORKS)
    return [replace(works, cell=first.cell.with_({DRIVER: str(400 + place)})) for place in range(count)]


class Timed(Commands):
    """Records the times of submission."""

    submitted: tuple[float, ...] = ()

    def submit(self, options: Sequence[str], script: str, environ: Mapping[str, str]) -> str:
        job = super().submit(options, script, environ)
        self.submitted = (*self.submitted, time.perf_counter())
        return job


class Alone:
    """One pytest process on this machine."""

    def ready(self, bases: Collection[str]) -> None:
        """Do nothing: the environment exists."""

    def lacks(self, base: str) -> str:
        return ""

    def installed(self, base: str) -> PythonEnvironment | None:
        return None

    def run(self, request: EngineRequest) -> EngineResult:
        python = Bases(load()).provide(BASE).path
        with request.log.open("a") as output:
            command = [str(python), "-m", "pytest", "tests/failures"]
            settings = os.environ | request.environ | {"MEGATRIX_BASE": BASE}
            return EngineResult(subprocess.run(command, cwd=ROOT, env=settings, stdout=output, check=False).returncode)


def work_off(
    planned: list[Planned], out: Path, engine: Engine, site: ClusterSite | None
) -> tuple[float, float, list[str]]:
    """Return the start and end of the run (seconds of time.perf_counter) and its verdicts."""
    known = load()
    warnings: list[str] = []
    began = time.perf_counter()
    request = Request(planned, out, cache=False, site=site)
    ended = execute(request, known, engine, Events(warn=warnings.append))
    assert not warnings, warnings
    return began, time.perf_counter(), [record.verdict.value for record in ended.records]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=2000)
    count = parser.parse_args().cells
    began = time.perf_counter()
    planned = cells(count)
    print(f"{count} cells planned in {time.perf_counter() - began:.2f} s")
    with tempfile.TemporaryDirectory(prefix="bench-slurm-") as folder, Cluster(Path(folder) / "cluster") as cluster:
        os.environ.update(cluster.environ)
        os.environ["PYTEST_PLUGINS"] = "bench.noop"
        commands = Timed()
        site = ClusterSite(load(), host.look(), commands)
        slurm = Slurm(site, LocalEngine(Bases(load()), only_make=True))
        began, ended, verdicts = work_off(planned, Path(folder) / "out", slurm, site)
        assert verdicts == ["holds"] * count
        tasks = cluster.call("squeue", "-h", "-r", "--states=all", "-o", "%T").splitlines()
        print(f"Slurm: submitted after {commands.submitted[-1] - began:.2f} s: {len(tasks)} tasks, {set(tasks)}")
        print(f"Slurm: reported after {ended - began:.2f} s, {1000 * (ended - began) / count:.1f} ms a cell")
        began, ended, verdicts = work_off(planned, Path(folder) / "local", Alone(), None)
        assert verdicts == ["holds"] * count
        print(f"local: reported after {ended - began:.2f} s, {1000 * (ended - began) / count:.1f} ms a cell")


if __name__ == "__main__":
    main()
