"""The engine against a Slurm in memory: what it submits, takes up, gives up and says. The real one: tests/slurm."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from matrix.errors import MatrixError
from matrix.execution.run import Request, execute
from matrix.execution.slurm.commands import Commands
from matrix.execution.slurm.engine import Slurm
from matrix.store import journal
from matrix.store.paths import Paths
from matrix.verdicts.record import Record, Verdict
from tests.unit.engines import HOST, make_environment
from tests.unit.execution.slurm.memory import CASES, KNOWN, Cluster, Maker


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Record]]:
    """Runs CASES on a cluster."""
    monkeypatch.setenv("TOX_WORK_DIR", str(tmp_path / "tox"))
    monkeypatch.setattr("matrix.provision.case_overlays.overlay_specs", lambda *_: ())
    make_environment(tmp_path / "tox" / "torch2.4.0", {"torch": "2.4.0"})

    def run(cluster: Cluster, resume: str = "") -> list[Record]:
        engine = Slurm(KNOWN, HOST, Maker(), Commands(call=cluster), sleep=lambda seconds: None)
        request = Request(CASES, tmp_path / "out", cache=False, resume=resume, attach=True)
        return list(execute(request, KNOWN, engine, shown.append, lambda text: None, engine).records)

    shown: list[Record] = []
    run.shown = shown  # type: ignore[attr-defined]
    return run


def folder(tmp_path: Path) -> Path:
    (found,) = Paths(tmp_path / "out").run("").iterdir()
    return found


def verdicts(records: Sequence[Record]) -> list[str]:
    return [record.verdict.value for record in records]


def test_cases_are_submitted_as_one_array_and_every_result_is_told_once(desk: Callable[..., list[Record]]) -> None:
    cluster = Cluster()
    told = desk(cluster)
    assert verdicts(told) == ["holds"] * len(CASES)
    assert [len(states) for _, _, states in cluster.jobs.values()] == [2]
    assert sorted(record.key for record in desk.shown) == sorted(item.key for item in CASES)  # type: ignore[attr-defined]


def test_a_base_that_tox_could_not_make_is_not_reached_and_nothing_is_submitted(
    desk: Callable[..., list[Record]], tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "tox")
    cluster = Cluster()
    told = desk(cluster)
    assert verdicts(told) == ["not-reached"] * len(CASES)
    assert "tox made no environment of torch-2.4.0" in told[0].outcome.reason
    assert cluster.jobs == {}


def test_slurm_is_asked_a_handful_of_times_however_many_cases_there_are(desk: Callable[..., list[Record]]) -> None:
    cluster = Cluster()
    desk(cluster)
    assert len(cluster.asked) < len(CASES)


def test_what_a_task_left_undone_gets_a_second_task_each(desk: Callable[..., list[Record]]) -> None:
    """The first task dies after a case: its other six run alone."""
    cluster = Cluster(lambda job, index: "FAILED" if (job, index) == (1, 0) else "COMPLETED")
    assert verdicts(desk(cluster)) == ["holds"] * len(CASES)
    assert [len(states) for _, _, states in cluster.jobs.values()] == [2, 6]


def test_a_case_that_kills_its_task_twice_is_not_reached_and_says_how(desk: Callable[..., list[Record]]) -> None:
    cluster = Cluster(lambda job, index: "TIMEOUT")
    cluster.work = lambda part, index, whole: None
    told = desk(cluster)
    assert verdicts(told) == ["not-reached"] * len(CASES)
    assert [len(states) for _, _, states in cluster.jobs.values()] == [2, len(CASES)]
    assert {record.outcome.reason.partition(" ended ")[2] for record in told} == {"TIMEOUT on n470"}


def test_what_somebody_cancelled_is_not_submitted_again(desk: Callable[..., list[Record]]) -> None:
    cluster = Cluster(lambda job, index: "CANCELLED" if index else "COMPLETED")
    told = desk(cluster)
    assert len(cluster.jobs) == 1
    assert "CANCELLED" in next(one.outcome.reason for one in told if one.verdict is Verdict.NOT_REACHED)


def test_what_the_queue_has_forgotten_is_known_all_the_same(desk: Callable[..., list[Record]]) -> None:
    """A task that somebody cancelled, and one that died twice, while another still ran."""
    cluster = Cluster(lambda job, index: "CANCELLED" if index else "TIMEOUT")
    cluster.forgets = True
    told = desk(cluster)
    assert [len(states) for _, _, states in cluster.jobs.values()] == [2, 6]
    ends = {record.outcome.reason.split()[4] for record in told if record.verdict is Verdict.NOT_REACHED}
    assert ends == {"CANCELLED"}


def test_what_was_cancelled_before_it_began_is_told_from_what_died(desk: Callable[..., list[Record]]) -> None:
    """squeue has one line for the former: task 1. Task 0 died after a case, and its other six are made up for."""
    cluster = Cluster(lambda job, index: "PENDING" if (job, index) == (1, 1) else "FAILED" if job == 1 else "COMPLETED")

    def scancel() -> None:
        if cluster.looks == 4:
            cluster.scancel(["1"])

    cluster.before_look = scancel
    told = desk(cluster)
    assert [len(states) for _, _, states in cluster.jobs.values()] == [2, 6]
    assert verdicts(told) == ["holds"] * 7 + ["not-reached"] * 8


def test_ctrl_c_cancels_what_waits(desk: Callable[..., list[Record]], tmp_path: Path) -> None:
    cluster = Cluster(lambda job, index: "PENDING" if index else "COMPLETED")

    def interrupt() -> None:
        if cluster.looks == 6:
            cluster.looks += 1
            raise KeyboardInterrupt

    cluster.before_look = interrupt
    with pytest.raises(KeyboardInterrupt):
        desk(cluster)
    assert {state for _, _, states in cluster.jobs.values() for state in states.values()} == {"COMPLETED", "REST"}
    assert len(journal.read(folder(tmp_path)).results) in range(1, len(CASES))


def test_a_resumed_run_takes_up_what_still_waits(
    desk: Callable[..., list[Record]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The submitter died without a word: the queue has the rest, and nothing is submitted again."""
    cluster = Cluster(lambda job, index: "PENDING" if index else "COMPLETED")

    def die() -> None:
        if cluster.looks == 6:
            cluster.scancel = lambda *_: ""  # type: ignore[method-assign]  # a dead process cancels nothing
            cluster.looks += 1
            raise SystemExit

    cluster.before_look = die
    monkeypatch.setattr("matrix.execution.slurm.queue.CANCEL_S", 0.0)
    with pytest.raises(SystemExit):
        desk(cluster)
    again = cluster.looks
    cluster.ends = lambda job, index: "COMPLETED" if cluster.looks > again + 4 else "PENDING"
    assert verdicts(desk(cluster, folder(tmp_path).name)) == ["holds"] * len(CASES)
    assert len(cluster.jobs) == 1


def test_a_controller_that_is_away_for_a_while_is_waited_for(desk: Callable[..., list[Record]]) -> None:
    cluster = Cluster()
    away = iter([True, False] * 100)  # every second question

    def silent() -> None:
        if next(away):
            raise MatrixError("squeue failed", got="Unable to contact slurm controller")

    cluster.before_look = silent
    assert verdicts(desk(cluster)) == ["holds"] * len(CASES)


def test_a_controller_that_stays_away_is_an_error_and_the_log_names_the_jobs(
    desk: Callable[..., list[Record]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("matrix.execution.slurm.queue.SILENCE_S", 0.0)
    cluster = Cluster(lambda job, index: "PENDING")

    def silent() -> None:
        if cluster.looks > 4:
            raise MatrixError("squeue failed", got="Unable to contact slurm controller")

    cluster.before_look = silent
    with pytest.raises(MatrixError, match="Unable to contact slurm controller"):
        desk(cluster)
    run = folder(tmp_path)
    assert f"the jobs are those whose name begins with megatrix-{run.name}-" in (run / "engine.log").read_text()
