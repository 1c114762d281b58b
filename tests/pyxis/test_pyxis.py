"""The image on a real Slurm with a real Pyxis: the verdicts of podman, and no process left after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from matrix.prove.provision import tools
from matrix.prove.provision.tools import IMAGES, ContainerSpec, Ref
from matrix.prove.store import journal
from tests.founding import MPI
from tests.slurm.cluster import NODES, kill
from tests.slurm.conftest import PLACES, Site, ended, facts_of, gone, places

CELL = "debian-13/mcore-0.10.0/te-1.9.0/driver-none"
CASES = ("torchrun-gloo", "torchrun-mpi", "mpirun-gloo", "mpirun-mpi", "torchrun-mpi-checked", "torchrun-mpi-world4")


def chosen(*cases: str) -> tuple[str, ...]:
    """Return the options that select these cases."""
    return tuple(word for case in cases for word in ("--case", f"{CELL} {MPI} {case} cpu"))


SOME = chosen("torchrun-gloo", "torchrun-mpi")


def facts(record: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a record that do not depend on the runtime; the digests of the image files differ."""
    resolved = {name: value for name, value in record["resolved"].items() if name != "image"}
    found = facts_of(record, ("verdict", "expectation", "signature", "other", "why", "reproduce"))
    return {**found, "resolved": resolved}


def started(site: Site) -> tuple[subprocess.Popen[str], str]:
    """Start cases on the cluster; return the run and the node when a container runs there."""
    run = site.begin(*SOME)
    (node,) = (node for node in NODES if site.cluster.jobs(node))
    return run, node


def steps(site: Site, node: str, *, batch: bool) -> list[int]:
    """Return the step daemons of a node's tasks (`batch`) or of their containers."""
    names = {one: Path(f"/proc/{one}/cmdline").read_bytes() for one in site.cluster.steps(node)}
    return [one for one, name in names.items() if (b".batch]" in name) is batch]


def test_pyxis_gives_the_verdicts_of_podman(site: Site, images: Path) -> None:
    cluster = site.compare(facts, *chosen(*CASES))
    assert len(cluster.records) == len(CASES)
    digest = tools.Pyxis("srun", images).digest(Ref("debian-13", "megatrix/debian-13"))
    assert {record["resolved"]["image"] for record in cluster.records} == {digest}
    where = places(cluster.records)
    assert set(where) <= PLACES
    assert where.total() == len(CASES)
    site.whole()


def test_dead_node_with_a_container_loses_no_case(site: Site) -> None:
    run, node = started(site)
    site.cluster.kill_node(node)
    site.finish(run, lost=node)


def test_container_without_its_step_daemon_loses_no_case(site: Site) -> None:
    """srun is not notified: the container continues, and its disconnection shows the task that it is done."""
    run, node = started(site)
    for process in steps(site, node, batch=False):
        kill(process)
    site.finish(run)


def test_container_ends_with_its_tasks_step_daemon(site: Site) -> None:
    """Slurm does not end the container's step: the container detects that its task has ended."""
    run, node = started(site)
    doomed = site.cluster.jobs(node)
    for process in steps(site, node, batch=True):
        kill(process)
    gone(doomed, seconds=30)
    site.finish(run)


def test_cancelled_task_stops_its_container_and_resumes(site: Site) -> None:
    run, node = started(site)
    doomed = site.cluster.jobs(node)
    site.cluster.call("scancel", "--user=root")
    assert ended(run).status == 1
    gone(doomed, seconds=1)
    assert site.lost()
    assert site.run("--resume").status == 0
    site.whole()


def test_ctrl_c_stops_the_containers_on_the_nodes(site: Site) -> None:
    run, node = started(site)
    doomed = site.cluster.jobs(node)
    os.killpg(run.pid, signal.SIGINT)
    assert ended(run).status == 130
    gone(doomed, seconds=1)
    assert len(journal.read(site.folder).results) < len(SOME)


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "enroot import -o"), (b"no file system", "got [ERROR] Invalid")],
    ids=["absent", "broken"],
)
def test_image_that_can_not_start_is_unavailable(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, words: str
) -> None:
    """srun exits with the same status for a failed pytest and a container that did not start."""
    if content:
        (tmp_path / "debian-13.sqsh").write_bytes(content)
    monkeypatch.setenv(IMAGES, str(tmp_path))
    ran = site.run(*SOME)
    assert ran.status == 3, ran.stderr  # nothing ran
    assert {record["verdict"] for record in ran.records} == {"unavailable"}
    assert all(words in record["reason"] for record in ran.records), ran.records


def test_node_without_pyxis_runs_nothing_outside_the_image(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slurmd ignores srun's options of a missing plugin, and would run the command on the node itself."""
    theirs = site.cluster.folder / "plugstack.conf"
    copy = tmp_path / "slurm"
    copy.mkdir()
    for name in ("slurm.conf", "gres.conf", "cgroup.conf"):
        text = (site.cluster.folder / name).read_text()
        (copy / name).write_text(text.replace(str(theirs), f"{copy}/plugstack.conf"))
    (copy / "plugstack.conf").write_text(theirs.read_text())
    monkeypatch.setenv("SLURM_CONF", f"{copy}/slurm.conf")
    found = tools.find_pyxis()
    assert found is not None
    command = found.command(
        Ref("debian-13", "megatrix/debian-13"), ContainerSpec("asks", tmp_path), "touch", f"{tmp_path}/ran"
    )
    theirs.write_text("")
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    finally:
        theirs.write_text((copy / "plugstack.conf").read_text())
    assert "has no Pyxis" in found.refusal(done.returncode, done.stderr)
    assert not (tmp_path / "ran").exists()
