"""The image on a real Slurm with a real Pyxis: the verdicts of podman, and nothing that was killed leaves a process."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from matrix.provision import pyxis
from matrix.provision.pyxis import IMAGES
from matrix.provision.tools import ContainerSpec, Ref
from matrix.store import journal
from tests.founding import MPI
from tests.slurm.cluster import NODES, kill
from tests.slurm.conftest import PLACES, Site, ended, facts_of, gone, places

CELL = "debian-13/mcore-0.10.0/te-1.9.0/driver-none"
CASES = ("torchrun-gloo", "torchrun-mpi", "mpirun-gloo", "mpirun-mpi", "torchrun-mpi-checked", "torchrun-mpi-world4")


def chosen(*cases: str) -> tuple[str, ...]:
    """The options that choose these cases."""
    return tuple(word for case in cases for word in ("--case", f"{CELL} {MPI} {case} cpu"))


SOME = chosen("torchrun-gloo", "torchrun-mpi")


def facts(record: dict[str, Any]) -> dict[str, Any]:
    """What a record says that must not depend on where it was made; two files hold the image, with a digest each."""
    resolved = {name: value for name, value in record["resolved"].items() if name != "image"}
    said = facts_of(record, ("verdict", "expectation", "signature", "other", "why", "reproduce"))
    return {**said, "resolved": resolved}


def started(site: Site) -> tuple[subprocess.Popen[str], str]:
    """Start cases on the cluster; return the run and the node, when a container runs one there."""
    run = site.begin(*SOME)
    (node,) = (node for node in NODES if site.cluster.jobs(node))
    return run, node


def steps(site: Site, node: str, *, batch: bool) -> list[int]:
    """The step daemons of a node's tasks, or of the containers that these started."""
    names = {one: Path(f"/proc/{one}/cmdline").read_bytes() for one in site.cluster.steps(node)}
    return [one for one, name in names.items() if (b".batch]" in name) is batch]


def test_pyxis_gives_the_verdicts_of_podman(site: Site, images: Path) -> None:
    there = site.compare(facts, *chosen(*CASES))
    assert len(there.records) == len(CASES)
    digest = pyxis.Pyxis("srun", images).digest(Ref("debian-13", "megatrix/debian-13"))
    assert {record["resolved"]["image"] for record in there.records} == {digest}
    where = places(there.records)
    assert set(where) <= PLACES
    assert where.total() == len(CASES)
    site.whole()


def test_a_node_that_dies_with_its_container_costs_nothing(site: Site) -> None:
    run, node = started(site)
    site.cluster.kill_node(node)
    site.finish(run, lost=node)


def test_a_container_whose_step_daemon_dies_costs_nothing(site: Site) -> None:
    """Slurm does not tell srun of it: the task hears from the container, which goes on, that it is done."""
    run, node = started(site)
    for process in steps(site, node, batch=False):
        kill(process)
    site.finish(run)


def test_a_task_whose_step_daemon_dies_takes_its_container_along(site: Site) -> None:
    """Slurm does not end the container's step: the container hears that its task is gone."""
    run, node = started(site)
    doomed = site.cluster.jobs(node)
    for process in steps(site, node, batch=True):
        kill(process)
    gone(doomed, seconds=30)
    site.finish(run)


def test_a_cancelled_task_stops_its_container_and_resume_goes_on(site: Site) -> None:
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
def test_an_image_that_can_not_be_started_is_unavailable(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, words: str
) -> None:
    """pytest and a container that never was leave srun with the same status; it is no failure."""
    if content:
        (tmp_path / "debian-13.sqsh").write_bytes(content)
    monkeypatch.setenv(IMAGES, str(tmp_path))
    ran = site.run(*SOME)
    assert ran.status == 0, ran.stderr
    assert {record["verdict"] for record in ran.records} == {"unavailable"}
    assert all(words in record["reason"] for record in ran.records), ran.records


def test_a_node_without_pyxis_runs_nothing_outside_of_the_image(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slurmd ignores what srun asks of a plugin that it has not, and would run the command on the node itself."""
    theirs = site.cluster.folder / "plugstack.conf"
    here = tmp_path / "slurm"
    here.mkdir()
    for name in ("slurm.conf", "gres.conf", "cgroup.conf"):
        text = (site.cluster.folder / name).read_text()
        (here / name).write_text(text.replace(str(theirs), f"{here}/plugstack.conf"))
    (here / "plugstack.conf").write_text(theirs.read_text())
    monkeypatch.setenv("SLURM_CONF", f"{here}/slurm.conf")
    found = pyxis.find()
    assert found is not None
    command = found.command(
        Ref("debian-13", "megatrix/debian-13"), ContainerSpec("asks", tmp_path), "touch", f"{tmp_path}/ran"
    )
    theirs.write_text("")
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    finally:
        theirs.write_text((here / "plugstack.conf").read_text())
    assert "has no Pyxis" in found.refusal(done.returncode, done.stderr)
    assert not (tmp_path / "ran").exists()
