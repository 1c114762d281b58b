"""A cluster for the tests of this folder, and `megatrix run` on it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from matrix.ground.catalog.codec import decode
from matrix.ground.verdicts.record import Record
from matrix.prove.provision.bases import WITH_GPU_PACKAGES
from matrix.prove.store import journal, stored_run
from tests.founding import BEHIND_MPI, SAVE
from tests.schemas import records_of
from tests.slurm.cluster import NODES, Cluster, alive, parent, wait

ROOT = Path(__file__).resolve().parents[2]
COMMAND_S = 1200.0  # limit for hanging commands: on two cores with a load of 20, a bisection took more than 300 s
PLACE = "ran on node"  # start of the note that names the node
PLACES = {f"{PLACE} {node}: {driver}" for node, driver in NODES.items()}
# Cases at level contract: 9 tasks of 93 cases, some seconds each, four at a time. Without 2.7.0, for which the entry
# expects nothing: the same function fails there for another class, which is red in a selection that asks for it.
MANY = ("--level", "contract", "--select", f"base==no-torch and failure=={BEHIND_MPI} and te!=2.7.0")
# Cases with ranks on gloo: four cases in two arrays (one rank, two ranks). Importing torch takes 10 s per task, a case
# 1 s.
RANKS = ("--level", "cpu", "--select", f"torch==2.4.0 and failure=={SAVE} and mcore==0.8.0")


@dataclass
class Site:
    """The cluster and the results folder of a test."""

    cluster: Cluster
    out: Path

    @property
    def folder(self) -> Path:
        """Return the folder of the only run."""
        (folder,) = (self.out / "runs").iterdir()
        return folder

    def start(self, *arguments: str, engine: str = "slurm", out: Path | None = None) -> subprocess.Popen[str]:
        """Start `megatrix run`."""
        command = [sys.executable, "-m", "matrix", "run", "--json", "--no-cache", "--engine", engine]
        return subprocess.Popen(
            [*command, "--out", str(out or self.out), *arguments],
            cwd=ROOT,
            # On one machine, too, with the packages for GPUs: they are in the content of a case.
            env={**os.environ, **self.cluster.environ, **WITH_GPU_PACKAGES},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, engine: str = "slurm", out: Path | None = None) -> Ran:
        """Run `megatrix run` and return its end."""
        return ended(self.start(*arguments, engine=engine, out=out))

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `megatrix run`; return when a case has begun.

        Its ranks' interpreter still imports torch then: the first result follows seconds later.
        """
        run = self.start(*arguments)
        wait(
            lambda: any('"started":' in path.read_text() for path in self.out.glob("runs/*/journal-*")),
            "no case starts",
        )
        return run

    def finish(self, run: subprocess.Popen[str], lost: str = "") -> None:
        """Fail unless the run succeeds and is whole. Then start the `lost` node, which must return to the cluster."""
        try:
            ran = ended(run)
        finally:
            if lost:
                self.cluster.start_node(lost)
        assert ran.status == 0, ran.stderr
        self.whole()
        if lost:
            count = str(len(NODES))
            wait(lambda: self.cluster.call("sinfo", "-h", "-t", "idle", "-o", "%D") == count, f"{lost} is not back")

    def compare(self, facts: Callable[[dict[str, Any]], dict[str, Any]], *arguments: str) -> Ran:
        """Run cases on one machine and on the cluster; fail unless all `facts` are equal. Return the cluster's run."""
        alone = self.run(*arguments, engine="local", out=self.out.with_name("alone"))
        cluster = self.run(*arguments)
        assert (alone.status, cluster.status) == (0, 0), alone.stderr + cluster.stderr
        found, expected = (
            dict(zip(keys(ran.records), map(facts, ran.records), strict=True)) for ran in (cluster, alone)
        )
        assert found == expected
        return cluster

    def wait_for_results(self, count: int) -> None:
        """Wait until the running run has that many results."""
        wait(
            lambda: bool(list(self.out.glob("runs/*/journal-*"))) and len(self.results()) >= count,
            f"no {count} results",
        )

    def results(self) -> list[str]:
        """Return the keys of all results in the journals, with duplicates."""
        lines = (line for path in self.folder.glob("journal-*.jsonl") for line in path.read_text().splitlines())
        values = (json.loads(line) for line in lines if '"result":' in line and line.endswith("}"))
        records = (decode(Record, one["result"]) for one in values)
        return [record.key for record in records if record.verdict.value != "not-reached"]

    def lost(self) -> list[Record]:
        """Return the records of cases that were not reached."""
        return [record for record in stored_run.read(self.folder).records if record.verdict.value == "not-reached"]

    def payloads(self, node: str) -> list[int]:
        """Return the array tasks on a node, the children of its step daemons."""
        steps = self.cluster.steps(node)
        return [process for process in self.cluster.jobs(node) if parent(process) in steps]

    def stop_controller(self) -> None:
        """Stop slurmctld with SIGTERM, as its service does. After SIGKILL it loses the state of the last seconds."""
        process = self.cluster.daemon("slurmctld")
        os.kill(process, signal.SIGTERM)
        wait(lambda: not alive(process), "the controller does not stop")

    def whole(self) -> None:
        """Fail unless every planned case has exactly one result, and the queue and the nodes are empty."""
        planned = [case["key"] for case in stored_run.plan(self.folder)]
        assert Counter(self.results()) == Counter(planned)
        assert {record.verdict.colour for record in journal.read(self.folder).results.values()} <= {"green", "learned"}
        self.quiet()

    def quiet(self) -> None:
        """Fail unless no job of the run is left in the queue and no process on the nodes."""
        assert self.cluster.call("squeue", "-h") == ""
        wait(lambda: not [one for node in NODES for one in self.cluster.jobs(node)], "jobs are left", seconds=60)


@dataclass(frozen=True)
class Ran:
    """The exit status, records and stderr of a command."""

    status: int
    records: list[dict[str, Any]]
    stderr: str


def ended(process: subprocess.Popen[str]) -> Ran:
    """Wait for a command and return its result."""
    out, err = process.communicate(timeout=COMMAND_S)
    return Ran(process.returncode, records_of(out), err)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("slurm") / "cluster") as made:
        yield made


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Site:
    return Site(cluster, tmp_path / "out")


def facts_of(record: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the fields `names` of a record, and its notes without the one that names the node."""
    notes = [note for note in record["notes"] if not note.startswith(PLACE)]
    return {name: record[name] for name in names} | {"notes": notes}


def places(records: Iterable[dict[str, Any]]) -> Counter[str]:
    """Return the number of cases per node, from the notes of their records."""
    return Counter(note for record in records for note in record["notes"] if note.startswith(PLACE))


def gone(processes: list[int], seconds: float) -> None:
    """Fail unless `processes` is not empty and all of them end within `seconds`."""
    assert processes
    wait(lambda: not any(map(alive, processes)), "processes without a parent still run", seconds=seconds)


def keys(records: Sequence[dict[str, Any]]) -> list[str]:
    return [f"{one['cell']['id']} {one['failure']} {one['case']} {one['level']}" for one in records]
