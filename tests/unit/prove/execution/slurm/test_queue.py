"""The jobs of a run in Slurm's queue: submitted with their limits, found again, cancelled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from matrix.ground.cases.machine_requirements import offered
from matrix.ground.catalog.failure import Level
from matrix.prove.execution.slurm.client import Commands, Task
from matrix.prove.execution.slurm.queue import ArraySpec, ClusterSite, Polling, Queue, ResourceRequest
from matrix.prove.execution.slurm.slurm_engine import mask_logs
from tests.unit.catalogs import planned, real
from tests.unit.engines import HOST
from tests.unit.prove.execution.slurm.memory import KNOWN, Cluster

RESOURCES = ResourceRequest("torch-2.4.0", Level.CPU, 0, (), 2)
JOB = (ArraySpec((("a b c cpu",), ("d e f cpu",))), RESOURCES, Path("/env/bin/python"))


@pytest.fixture
def cluster() -> Cluster:
    """Return a cluster whose tasks wait until the test changes their state."""
    cluster = Cluster(lambda job, index: "PENDING")
    cluster.work = lambda part, index, whole: None
    return cluster


def queue_of(cluster: Cluster, folder: Path) -> Queue:
    """Return the queue of the run in `folder`, as a submitter has it."""
    folder.mkdir(exist_ok=True)
    return Queue(folder, Commands(call=cluster), Polling(sleep=lambda seconds: None), folder / "log")


def test_submitted_array_is_found_by_its_name(cluster: Cluster, tmp_path: Path) -> None:
    queue = queue_of(cluster, tmp_path / "1-night")
    queue.submit(*JOB, {"HOME": "/home"})
    queue.submit(*JOB, {}, "ask-debian-13")
    assert [queue.part_name(task) for task in queue.live()] == ["0000"] * 2 + ["ask-debian-13"] * 2
    assert [queue.keys(task) for task in queue_of(cluster, tmp_path / "1-night").live()][:2] == [
        ["a b c cpu"],
        ["d e f cpu"],
    ]
    assert "megatrix-1-night-0000: job 1, 2 tasks" in (tmp_path / "1-night" / "log").read_text()


def test_job_has_its_limits(cluster: Cluster, tmp_path: Path) -> None:
    queue_of(cluster, tmp_path / "1-night").submit(*JOB, {"MEGATRIX_DEADLINE": "60"})
    (command,) = (command for command in cluster.commands if "--parsable" in command)
    expected = {"--array=0-1", "--requeue", "--cpus-per-task=2", "--time=12", "--job-name=megatrix-1-night-0000"}
    assert expected <= {*command}


def test_only_tasks_of_this_submitter_are_cancelled(cluster: Cluster, tmp_path: Path) -> None:
    queue = queue_of(cluster, tmp_path / "1-night")
    queue.submit(*JOB, {})
    cluster.ends = lambda job, index: "CANCELLED"
    queue.live()
    assert queue.cancelled() == {"a b c cpu", "d e f cpu"}
    assert queue_of(cluster, tmp_path / "1-night").cancelled() == set()


def test_task_for_a_person_to_start_is_cancelled(cluster: Cluster, tmp_path: Path) -> None:
    queue = queue_of(cluster, tmp_path / "1-night")
    commands = Commands(call=cluster)
    stuck = Task("megatrix-1-night-0000", "1", 0, "PENDING", "", "JobHeldAdmin")
    commands.tasks = lambda prefix: [stuck]  # type: ignore[method-assign]
    queue._commands = commands
    assert queue.live() == [stuck]
    assert ["scancel", "--quiet", "1_0"] in cluster.commands
    assert "1_0: cancelled, because only a person can start it: JobHeldAdmin" in (tmp_path / "1-night/log").read_text()


def test_logs_are_masked(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://me:secret-1@index/simple")
    queue = queue_of(cluster, tmp_path / "1-night")
    (queue.parts / "0000-0.log").write_text("https://me:secret-1@index/simple\n")
    mask_logs(queue.parts)
    assert "secret-1" not in (queue.parts / "0000-0.log").read_text()


@pytest.mark.parametrize(
    ("drivers", "option", "reason"),
    [
        ((470, 535), "--constraint=driver470|driver535", ""),  # 470 by the image's compat package
        ((510, 535), "--constraint=driver535", ""),
        ((510,), "", "driver 510 is too old: ngc-24.03 has CUDA 12.4.0.041"),
    ],
)
def test_gpu_case_requires_a_driver_for_its_image(drivers: tuple[int, ...], option: str, reason: str) -> None:
    known = replace(KNOWN, containers=real().containers, drivers=real().drivers)
    item = planned(known, base="ngc-24.03", core="none", level=Level.GPU)
    cluster = Cluster()
    cluster.nodes = "".join(f"n{driver}|driver{driver}|gpu:8|8|idle|1\n" for driver in drivers)
    lack = ClusterSite(known, HOST, Commands(call=cluster)).lack(known, item, offered(known, item.cell.base))
    assert reason in (lack.text if lack else "")
    assert (lack is None) is (reason == "")
    assert [word for command in cluster.commands for word in command if "constraint" in word] == [option] * bool(option)
