"""The image on a real Slurm of two nodes: the verdicts of one machine, and no container outlives its task."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from matrix.prove.provision.tools import Tool
from matrix.prove.store import journal
from tests.founding import MPI
from tests.image.test_image import containers, no_container_left
from tests.slurm.cluster import NODES, Cluster
from tests.slurm.conftest import PLACES, Site, ended, facts_of, places

CELL = "debian-13/mcore-0.10.0/te-1.9.0/driver-none"
CASES = ("torchrun-gloo", "torchrun-mpi", "mpirun-gloo", "mpirun-mpi", "torchrun-mpi-checked", "torchrun-mpi-world4")
CHOSEN = tuple(word for case in CASES for word in ("--case", f"{CELL} {MPI} {case} cpu"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("slurm") / "cluster") as made:
        yield made


@pytest.fixture
def site(cluster: Cluster, tool: Tool, tmp_path: Path) -> Iterator[Site]:
    """The cluster; its nodes are this machine and have the image."""
    yield Site(cluster, tmp_path / "out")
    no_container_left(tool, tmp_path)


def facts(record: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a record that do not depend on the machine."""
    return facts_of(record, ("verdict", "expectation", "other", "resolved", "content"))


def started(site: Site, tool: Tool) -> subprocess.Popen[str]:
    """Start the cases on the cluster; return when a container runs one."""
    run = site.begin(*CHOSEN)
    assert containers(tool, site.out)
    return run


def test_two_nodes_give_the_verdicts_of_one_machine(site: Site) -> None:
    cluster = site.compare(facts, *CHOSEN)
    assert len(cluster.records) == len(CASES)
    assert {record["resolved"]["image"][:7] for record in cluster.records} == {"sha256:"}
    where = places(cluster.records)
    assert set(where) <= PLACES
    assert where.total() == len(CASES)
    site.whole()


def test_dead_node_with_a_container_loses_no_case(site: Site, tool: Tool) -> None:
    """The daemons and tasks of the node die; the container ends, and its other cases run on the other node."""
    run = started(site, tool)
    node = next(node for node in NODES if site.cluster.jobs(node))
    site.cluster.kill_node(node)
    site.finish(run, lost=node)


def test_cancelled_task_stops_its_container_and_resumes(site: Site, tool: Tool) -> None:
    run = started(site, tool)
    site.cluster.call("scancel", "--user=root")
    assert ended(run).status == 1
    no_container_left(tool, site.out)
    lost = site.lost()
    assert lost
    assert {"CANCELLED" in record.outcome.reason or "interrupted" in record.outcome.reason for record in lost} == {True}
    assert site.run("--resume").status == 0
    site.whole()


def test_containers_continue_after_the_submitter_is_killed(site: Site, tool: Tool) -> None:
    run = started(site, tool)
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()
    assert site.cluster.call("squeue", "-h") != ""

    assert site.run("--resume").status == 0
    assert len(list((site.folder / "slurm").glob("[0-9]*.json"))) == 1
    site.whole()


def test_ctrl_c_stops_the_containers_on_the_nodes(site: Site, tool: Tool) -> None:
    run = started(site, tool)
    os.killpg(run.pid, signal.SIGINT)
    assert ended(run).status == 130
    site.quiet()
    no_container_left(tool, site.out)
    assert len(journal.read(site.folder).results) < len(CASES)
