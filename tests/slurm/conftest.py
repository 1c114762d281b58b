"""A cluster for the tests of this folder, and the product run on it as a person does."""

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

from matrix.store import journal, night
from matrix.verdicts.record import Record
from tests.founding import BEHIND_MPI, SAVE
from tests.slurm.cluster import NODES, Cluster, alive, parent, wait

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 300.0  # only a bound against hanging
PLACE = "ran on node"  # how the note begins that names one
PLACES = {f"{PLACE} {node}: {driver}" for node, driver in NODES.items()}
# What only reads: 9 tasks of 96 cases, some seconds each, four at a time.
MANY = ("--level", "contract", "--select", f"base==no-torch and failure=={BEHIND_MPI}")
# What runs ranks on gloo: four cases in two arrays (one rank, two ranks), 10 s each until torch is imported, then 1 s a
# case.
RANKS = ("--level", "cpu", "--select", f"torch==2.4.0 and failure=={SAVE} and mcore==0.8.0")


@dataclass
class Site:
    """The cluster and a folder of the test's own for results."""

    cluster: Cluster
    out: Path

    @property
    def folder(self) -> Path:
        """The folder of the only run."""
        (folder,) = (self.out / "runs").iterdir()
        return folder

    def start(self, *arguments: str, engine: str = "slurm", out: Path | None = None) -> subprocess.Popen[str]:
        """Start `megatrix run`."""
        command = [sys.executable, "-m", "matrix", "run", "--json", "--no-cache", "--engine", engine]
        return subprocess.Popen(
            [*command, "--out", str(out or self.out), *arguments],
            cwd=ROOT,
            env=os.environ | self.cluster.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, engine: str = "slurm", out: Path | None = None) -> Ran:
        """Run `megatrix run` to its end."""
        return ended(self.start(*arguments, engine=engine, out=out))

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `megatrix run`; return when a case has begun.

        Its ranks' interpreter still imports torch then: it is seconds before the first result.
        """
        run = self.start(*arguments)
        wait(
            lambda: any('"started":' in path.read_text() for path in self.out.glob("runs/*/journal-*")),
            "no case starts",
        )
        return run

    def finish(self, run: subprocess.Popen[str], lost: str = "") -> None:
        """Fail unless the run ends well and is whole. A node that was `lost` is started then, and must come back."""
        try:
            ran = ended(run)
        finally:
            if lost:
                self.cluster.start_node(lost)
        assert ran.status == 0, ran.stderr
        self.whole()
        if lost:
            everyone = str(len(NODES))
            wait(lambda: self.cluster.call("sinfo", "-h", "-t", "idle", "-o", "%D") == everyone, f"{lost} is not back")

    def compare(self, facts: Callable[[dict[str, Any]], dict[str, Any]], *arguments: str) -> Ran:
        """Run cases on one machine and on the cluster; fail unless `facts` of all are the same. Return the latter."""
        alone = self.run(*arguments, engine="local", out=self.out.with_name("alone"))
        there = self.run(*arguments)
        assert (alone.status, there.status) == (0, 0), alone.stderr + there.stderr
        told, expected = (dict(zip(keys(ran.records), map(facts, ran.records), strict=True)) for ran in (there, alone))
        assert told == expected
        return there

    def wait_for_results(self, count: int) -> None:
        """Wait until the run has that many results, so that it is in its midst."""
        wait(
            lambda: bool(list(self.out.glob("runs/*/journal-*"))) and len(self.results()) >= count,
            f"no {count} results",
        )

    def results(self) -> list[str]:
        """The keys of all results in the journals, as often as they stand there."""
        lines = (line for path in self.folder.glob("journal-*.jsonl") for line in path.read_text().splitlines())
        told = (json.loads(line) for line in lines if '"result":' in line and line.endswith("}"))
        records = (Record.from_json(one["result"]) for one in told)
        return [record.key for record in records if record.verdict.value != "not-reached"]

    def lost(self) -> list[Record]:
        """The cases that were not reached."""
        return [record for record in night.read(self.folder).records if record.verdict.value == "not-reached"]

    def payloads(self, node: str) -> list[int]:
        """The array tasks on a node: what the step daemons started themselves."""
        steps = self.cluster.steps(node)
        return [process for process in self.cluster.jobs(node) if parent(process) in steps]

    def stop_controller(self) -> None:
        """Stop slurmctld as its service does. Killed outright it forgets what it did in the seconds before."""
        process = self.cluster.daemon("slurmctld")
        os.kill(process, signal.SIGTERM)
        wait(lambda: not alive(process), "the controller does not stop")

    def whole(self) -> None:
        """Fail unless every planned case has exactly one result, and nothing of the run is left in queue or memory."""
        planned = [case["key"] for case in night.plan(self.folder)]
        assert Counter(self.results()) == Counter(planned)
        assert {record.verdict.colour for record in journal.read(self.folder).results.values()} <= {"green", "learned"}
        self.quiet()

    def quiet(self) -> None:
        """Fail unless nothing of the run is left in the queue or in memory."""
        assert self.cluster.call("squeue", "-h") == ""
        wait(lambda: not [one for node in NODES for one in self.cluster.jobs(node)], "jobs are left", seconds=10)


@dataclass(frozen=True)
class Ran:
    """What a command printed."""

    status: int
    records: list[dict[str, Any]]
    stderr: str


def ended(process: subprocess.Popen[str]) -> Ran:
    """Return what a command printed, when it has ended."""
    out, err = process.communicate(timeout=PATIENCE_S)
    return Ran(process.returncode, [json.loads(line) for line in out.splitlines() if line.startswith("{")], err)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("slurm") / "cluster") as made:
        yield made


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Site:
    return Site(cluster, tmp_path / "out")


def facts_of(record: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return what a record says under `names` and in its notes, of which one tells the node."""
    notes = [note for note in record["notes"] if not note.startswith(PLACE)]
    return {name: record[name] for name in names} | {"notes": notes}


def places(records: Iterable[dict[str, Any]]) -> Counter[str]:
    """Return where cases ran, as their records' notes tell it, each with how many did."""
    return Counter(note for record in records for note in record["notes"] if note.startswith(PLACE))


def gone(processes: list[int], seconds: float) -> None:
    """Fail unless there were processes and all are gone soon."""
    assert processes
    wait(lambda: not any(map(alive, processes)), "what lost its parent is still there", seconds=seconds)


def keys(records: Sequence[dict[str, Any]]) -> list[str]:
    return [f"{one['cell']['id']} {one['failure']} {one['case']} {one['level']}" for one in records]
