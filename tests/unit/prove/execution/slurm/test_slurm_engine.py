"""The engine on a Slurm in memory: submission, resumption, cancellation and reasons. Real Slurm: tests/slurm."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.record import Record, Verdict
from matrix.prove.execution.runner import Events, Request, earlier, execute
from matrix.prove.execution.slurm.client import Commands
from matrix.prove.execution.slurm.queue import ClusterSite, Polling
from matrix.prove.execution.slurm.slurm_engine import Slurm
from matrix.prove.store import journal
from matrix.prove.store.paths import Paths
from tests.unit.engines import HOST, make_environment
from tests.unit.prove.execution.slurm.memory import CASES, KNOWN, Cluster, Maker


@pytest.fixture
def run_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Record]]:
    """Return a function that runs CASES on a cluster."""
    monkeypatch.setenv("BASES_OF_TESTS", str(tmp_path / "bases"))
    monkeypatch.setattr("matrix.prove.provision.case_overlays.overlay_specs", lambda *_: ())
    make_environment(tmp_path / "bases" / "torch-2.4.0", {"torch": "2.4.0"})

    def run(cluster: Cluster, resume: str = "") -> list[Record]:
        site = ClusterSite(KNOWN, HOST, Commands(call=cluster))
        engine = Slurm(site, Maker(), polling=Polling(sleep=lambda seconds: None))
        earlier_run = earlier(tmp_path / "out", resume) if resume else None
        request = Request(CASES, tmp_path / "out", False, earlier_run, attach=True, site=site)
        return list(execute(request, KNOWN, engine, Events(show=shown.append)).records)

    shown: list[Record] = []
    run.shown = shown  # type: ignore[attr-defined]
    return run


def folder(tmp_path: Path) -> Path:
    (found,) = Paths(tmp_path / "out").run("").iterdir()
    return found


def verdicts(records: Sequence[Record]) -> list[str]:
    return [record.verdict.value for record in records]


def test_one_array_returns_each_result_once(run_cases: Callable[..., list[Record]]) -> None:
    cluster = Cluster()
    records = run_cases(cluster)
    assert verdicts(records) == ["holds"] * len(CASES)
    assert [len(states) for _, _, states in cluster.jobs.values()] == [2]
    assert sorted(record.key for record in run_cases.shown) == sorted(item.key for item in CASES)  # type: ignore[attr-defined]


def test_unmade_base_is_not_reached(run_cases: Callable[..., list[Record]], tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "bases")
    cluster = Cluster()
    records = run_cases(cluster)
    assert verdicts(records) == ["not-reached"] * len(CASES)
    assert "torch-2.4.0: uv can't make it" in records[0].outcome.reason
    assert cluster.jobs == {}


def test_slurm_calls_do_not_grow_with_cases(run_cases: Callable[..., list[Record]]) -> None:
    cluster = Cluster()
    run_cases(cluster)
    assert len(cluster.commands) < len(CASES)


def test_cases_of_a_dead_task_run_again_alone(run_cases: Callable[..., list[Record]]) -> None:
    """The first task dies after one case; each of its other six gets its own task."""
    cluster = Cluster(lambda job, index: "FAILED" if (job, index) == (1, 0) else "COMPLETED")
    assert verdicts(run_cases(cluster)) == ["holds"] * len(CASES)
    assert [len(states) for _, _, states in cluster.jobs.values()] == [2, 6]


def test_case_that_kills_two_tasks_is_not_reached(run_cases: Callable[..., list[Record]]) -> None:
    cluster = Cluster(lambda job, index: "TIMEOUT")
    cluster.work = lambda part, index, whole: None
    records = run_cases(cluster)
    assert verdicts(records) == ["not-reached"] * len(CASES)
    assert [len(states) for _, _, states in cluster.jobs.values()] == [2, len(CASES)]
    assert {record.outcome.reason.partition(" ended ")[2] for record in records} == {"TIMEOUT on n470"}


def test_cancelled_tasks_are_not_submitted_again(run_cases: Callable[..., list[Record]]) -> None:
    cluster = Cluster(lambda job, index: "CANCELLED" if index else "COMPLETED")
    records = run_cases(cluster)
    assert len(cluster.jobs) == 1
    assert "CANCELLED" in next(one.outcome.reason for one in records if one.verdict is Verdict.NOT_REACHED)


def test_ended_tasks_dropped_by_the_queue_are_kept(run_cases: Callable[..., list[Record]]) -> None:
    """One task is cancelled and one dies twice, while another still runs."""
    cluster = Cluster(lambda job, index: "CANCELLED" if index else "TIMEOUT")
    cluster.forgets = True
    records = run_cases(cluster)
    assert [len(states) for _, _, states in cluster.jobs.values()] == [2, 6]
    ends = {record.outcome.reason.split()[4] for record in records if record.verdict is Verdict.NOT_REACHED}
    assert ends == {"CANCELLED"}


def test_tasks_cancelled_before_start_are_not_retried(run_cases: Callable[..., list[Record]]) -> None:
    """squeue prints one line for the cancelled task 1. Task 0 dies after one case; its other six run again."""
    cluster = Cluster(lambda job, index: "PENDING" if (job, index) == (1, 1) else "FAILED" if job == 1 else "COMPLETED")

    def scancel() -> None:
        if cluster.looks == 4:
            cluster.scancel(["1"])

    cluster.before_look = scancel
    records = run_cases(cluster)
    assert [len(states) for _, _, states in cluster.jobs.values()] == [2, 6]
    assert verdicts(records) == ["holds"] * 7 + ["not-reached"] * 8


def test_ctrl_c_cancels_pending_tasks(run_cases: Callable[..., list[Record]], tmp_path: Path) -> None:
    cluster = Cluster(lambda job, index: "PENDING" if index else "COMPLETED")

    def interrupt() -> None:
        if cluster.looks == 6:
            cluster.looks += 1
            raise KeyboardInterrupt

    cluster.before_look = interrupt
    with pytest.raises(KeyboardInterrupt):
        run_cases(cluster)
    assert {state for _, _, states in cluster.jobs.values() for state in states.values()} == {"COMPLETED", "REST"}
    assert len(journal.read(folder(tmp_path)).results) in range(1, len(CASES))


def test_resumed_run_uses_pending_tasks(
    run_cases: Callable[..., list[Record]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The submitter dies without a cleanup: the tasks are still in the queue, and nothing is submitted again."""
    cluster = Cluster(lambda job, index: "PENDING" if index else "COMPLETED")

    def die() -> None:
        if cluster.looks == 6:
            cluster.scancel = lambda *_: ""  # type: ignore[method-assign]  # a dead process cancels nothing
            cluster.looks += 1
            raise SystemExit

    cluster.before_look = die
    monkeypatch.setattr("matrix.prove.execution.slurm.queue.CANCEL_S", 0.0)
    with pytest.raises(SystemExit):
        run_cases(cluster)
    again = cluster.looks
    cluster.ends = lambda job, index: "COMPLETED" if cluster.looks > again + 4 else "PENDING"
    assert verdicts(run_cases(cluster, folder(tmp_path).name)) == ["holds"] * len(CASES)
    assert len(cluster.jobs) == 1


def test_engine_retries_while_the_controller_is_away(run_cases: Callable[..., list[Record]]) -> None:
    cluster = Cluster()
    away = iter([True, False] * 100)  # every second call

    def fail() -> None:
        if next(away):
            raise MatrixError("squeue failed", got="Unable to contact slurm controller")

    cluster.before_look = fail
    assert verdicts(run_cases(cluster)) == ["holds"] * len(CASES)


def test_lost_controller_raises_and_logs_the_job_names(
    run_cases: Callable[..., list[Record]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("matrix.prove.execution.slurm.queue.SILENCE_S", 0.0)
    cluster = Cluster(lambda job, index: "PENDING")

    def fail() -> None:
        if cluster.looks > 4:
            raise MatrixError("squeue failed", got="Unable to contact slurm controller")

    cluster.before_look = fail
    with pytest.raises(MatrixError, match="Unable to contact slurm controller"):
        run_cases(cluster)
    run = folder(tmp_path)
    assert f"cancel the jobs whose name starts with megatrix-{run.name}-" in (run / "engine.log").read_text()
