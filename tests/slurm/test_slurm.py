"""Runs on a real Slurm of two nodes: the report of one machine, also after kills and cancellations."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import Any

import pytest

from matrix.ground.cases.machine_requirements import BaseOffer
from matrix.ground.catalog import loading
from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.stack import DRIVER
from matrix.ground.verdicts.planned import Planned
from matrix.prove.execution.slurm.client import of
from matrix.prove.execution.slurm.queue import ClusterSite
from matrix.prove.provision import host
from matrix.prove.store import journal, stored_run
from tests.founding import SAVE
from tests.slurm.cluster import NODES, kill, wait
from tests.slurm.conftest import MANY, PLACES, RANKS, Site, ended, facts_of, gone, places
from tests.unit.catalogs import planned

# Four cases with ranks on each of two releases.
LONG = (*RANKS[:-1], f"{RANKS[-1]} or torch==2.4.0 and failure=={SAVE} and mcore==0.9.0")


def facts(record: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a record that do not depend on its node, which is only in its last note.

    The reason of an unavailable case depends on the machine.
    """
    names = ["failure", "case", "cell", "level", "outcome", "expectation", "verdict", "signature", "other", "resolved"]
    names += ["content", "why", "reproduce", *(["reason"] if record["verdict"] != "unavailable" else [])]
    return facts_of(record, names)


def test_two_nodes_give_the_report_of_one_machine(site: Site) -> None:
    """All 200 cases of a night at level contract are equal, and both nodes ran some."""
    cluster = site.compare(facts, "--level", "contract")
    assert len(cluster.records) > 100
    ran = [record for record in cluster.records if record["verdict"] != "unavailable"]
    assert set(places(ran)) == PLACES
    assert all(PLACES.intersection(record["notes"]) for record in ran)
    site.quiet()


def test_dead_node_loses_no_case(site: Site) -> None:
    """The node's daemon, step daemons and tasks die at once: Slurm restarts the tasks on the other node."""
    run = site.start(*MANY)
    site.wait_for_results(50)
    site.cluster.kill_node("n470")
    site.finish(run, lost="n470")


def test_unreachable_node_makes_no_case_run_twice(site: Site) -> None:
    """Only slurmd is killed: its tasks continue, and the tasks that Slurm restarts on the other node wait for them."""
    run = site.start(*LONG)
    wait(lambda: any(site.payloads(node) for node in NODES), "no task starts")
    node = next(node for node in NODES if site.payloads(node))
    kill(site.cluster.daemon(node))
    site.finish(run, lost=node)


@pytest.mark.parametrize("what", ["step daemons", "tasks"])
def test_killed_tasks_leave_no_process_and_run_again(site: Site, what: str) -> None:
    """A step daemon's task and a task's ranks end with it; cases without a result run again alone."""
    killed = {"step daemons": site.cluster.steps, "tasks": site.payloads}[what]
    run = site.begin(*RANKS)
    doomed = [process for node in NODES for process in site.cluster.jobs(node)]
    for process in [process for node in NODES for process in killed(node)]:
        kill(process)
    gone(doomed, seconds=3)  # an orphaned task would run longer
    site.finish(run)


def test_cancelled_tasks_are_not_reached_and_resumed(site: Site) -> None:
    """Cancelled tasks are not submitted again; --resume submits them."""
    run = site.start(*MANY)
    site.wait_for_results(50)
    site.cluster.call("scancel", "--user=root")
    ran = ended(run)

    lost = site.lost()
    assert ran.status == 1
    assert lost
    assert {"CANCELLED" in record.outcome.reason for record in lost} == {True}
    site.quiet()
    assert site.run("--resume").status == 0
    site.whole()


def test_tasks_continue_after_the_submitter_is_killed(site: Site) -> None:
    """--resume uses the running tasks and submits nothing again."""
    run = site.start(*MANY)
    site.wait_for_results(50)
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()
    assert site.cluster.call("squeue", "-h") != ""

    ran = site.run("--resume")

    assert ran.status == 0, ran.stderr
    assert len(list((site.folder / "slurm").glob("[0-9]*.json"))) == 1
    site.whole()


def test_ctrl_c_cancels_the_tasks_and_resume_continues(site: Site) -> None:
    run = site.begin(*RANKS)
    os.killpg(run.pid, signal.SIGINT)
    assert ended(run).status == 130
    site.quiet()
    assert len(journal.read(site.folder).results) < len(stored_run.plan(site.folder))

    assert site.run("--resume").status == 0
    site.whole()


@pytest.fixture
def nodes(site: Site, monkeypatch: pytest.MonkeyPatch) -> ClusterSite:
    """Return the nodes of the cluster."""
    monkeypatch.setenv("SLURM_CONF", site.cluster.environ["SLURM_CONF"])
    return ClusterSite(loading.load(), host.look(), of("", ()))


def case(driver: str, gpus: int) -> Planned:
    """Return a case at level gpu."""
    item = planned(loading.load(), level=Level.GPU, gpus=gpus)
    return replace(item, cell=item.cell.with_({DRIVER: driver}))


@pytest.mark.parametrize(
    ("driver", "gpus", "words"),
    [
        ("535", 2, ""),
        ("550", 2, "Invalid feature specification"),
        ("535", 8, "Requested node configuration is not available"),
        ("470", 1, "Requested node configuration is not available"),
    ],
)
def test_unavailable_resources_are_found_before_submission(
    nodes: ClusterSite, driver: str, gpus: int, words: str
) -> None:
    """The reason has the requirements, Slurm's message and the features. n470 has no GPU, n535 two; both 4000 MB."""
    lack = nodes.lack(loading.load(), case(driver, gpus), BaseOffer("torch-2.4.0"))
    assert (lack is not None) is bool(words)
    if lack:
        needs = f"needs --gres=gpu:{gpus} --mem=4000M --constraint=driver{driver}; Slurm: allocation failure: {words}"
        assert lack.text == f"{needs}; features of its nodes: driver470, driver535"
