"""Timed-out tasks, held tasks and a restarted controller, on a real Slurm."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from matrix.prove.store import stored_run
from tests.slurm.cluster import NODES, alive, wait
from tests.slurm.conftest import MANY, RANKS, Site, ended

# Two cases of two ranks each: an array of one task.
PAIR = (*RANKS[:-1], f"{RANKS[-1]} and (case==tp2 or case==pp2)")
MINUTE = "--sbatch=--time=1"  # Slurm's shortest limit; it checks the limits every 30 s


def stop(site: Site, array: str, index: int) -> int:
    """Stop a task's process at its start, like a dead file system; return its pid."""

    def ours(process: int) -> bool:
        folder = Path(f"/proc/{process}")
        text = (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes()
        return f"SLURM_ARRAY_TASK_ID={index}\0".encode() in text and f"/{array}.json\0".encode() in text

    def found() -> list[int]:
        return [process for node in NODES for process in site.payloads(node) if ours(process)]

    wait(lambda: bool(found()), f"task {index} of {array} does not start")
    (process,) = found()
    os.kill(process, signal.SIGSTOP)
    return process


def test_cases_of_timed_out_tasks_run_again_alone(site: Site) -> None:
    """One of two cases gets its result in its second task, the other is stopped again: the reason is TIMEOUT."""
    run = site.start(*PAIR, MINUTE)
    stopped = [stop(site, "0000", 0)]
    query = ("squeue", "-h", "--states=all", "-o", "%T", "--name", f"megatrix-{site.folder.name}-0000")
    wait(lambda: site.cluster.call(*query) == "TIMEOUT", "Slurm does not end it")
    stopped.append(stop(site, "0001", 0))
    ran = ended(run)

    lost, done = (one["key"] for one in stored_run.plan(site.folder))
    records = {record.key: record for record in stored_run.read(site.folder).records}
    assert ran.status == 1, ran.stderr
    assert site.results() == [done]
    assert records[done].verdict.colour == "green"
    assert records[lost].verdict.value == "not-reached"
    assert "ended TIMEOUT on n" in records[lost].outcome.reason
    assert not [process for process in stopped if alive(process)]
    site.quiet()

    assert site.run("--resume").status == 0
    site.whole()


def test_restarted_controller_loses_no_case(site: Site) -> None:
    """Tasks continue without the controller, and the submitter continues after its restart."""
    run = site.start(*MANY)
    site.wait_for_results(50)
    site.stop_controller()
    log = site.folder / "engine.log"
    wait(lambda: "squeue failed" in log.read_text(), "the submitter does not notice")
    site.cluster.start("slurmctld")
    site.finish(run)


def test_held_tasks_are_not_reached_and_resumed(site: Site) -> None:
    """Held tasks are cancelled with a line in the log, so that the run ends; other results are kept."""
    run = site.start(*MANY)
    site.wait_for_results(1)
    (array,) = set(site.cluster.call("squeue", "-h", "-t", "PENDING", "-o", "%F").split())
    site.cluster.call("scontrol", "hold", array)
    ran = ended(run)

    lost = site.lost()
    assert ran.status == 1, ran.stderr
    assert lost
    assert site.results()
    assert {"JobHeldAdmin" in record.outcome.reason for record in lost} == {True}, lost[0].outcome.reason
    assert "cancelled, because only a person can start it: JobHeldAdmin" in (site.folder / "engine.log").read_text()
    site.quiet()

    assert site.run("--resume").status == 0
    site.whole()
