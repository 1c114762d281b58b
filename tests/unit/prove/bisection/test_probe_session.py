"""The store of a bisection; what a record means to it and to `git bisect run`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.stack import MCORE
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.outcome import Frame, Outcome, OutcomeKind, Raised, RankEnd
from matrix.ground.verdicts.record import Record
from matrix.kit.command import METRIC, RUNS
from matrix.prove.bisection.axes import AxisPoint, BisectionAxis, Subject
from matrix.prove.bisection.noise import ProbeResult
from matrix.prove.bisection.probe_session import (
    BisectionSession,
    ProbeStore,
    bisect,
    changing_frame,
    diverged_of,
    exit_code,
    metric_of,
    numbers_of,
    runs_of_record,
    seen_of,
    why,
)
from matrix.prove.bisection.search import Ancestry, Plan
from tests.unit import catalogs
from tests.unit.prove.bisection import repositories
from tests.unit.prove.bisection.repositories import record_of

PASSED = Outcome(OutcomeKind.PASSED)
STRANGE = Outcome(OutcomeKind.RAISED, "rank 0 raised: KeyError", 0, chain=(Raised("KeyError", "'loss'"),))


@pytest.mark.parametrize(
    ("ends", "code", "seen"),
    [
        ([Outcome(OutcomeKind.PASSED)], 0, ProbeResult.GOOD),
        ([catalogs.shown(repositories.ENTRY)], 1, ProbeResult.BAD),
        ([STRANGE], 125, ProbeResult.SKIP),
        ([Outcome(OutcomeKind.UNAVAILABLE, "no torch")], 125, ProbeResult.SKIP),
        ([Outcome(OutcomeKind.NOT_REACHED)], 125, ProbeResult.SKIP),
    ],
)
def test_the_exit_code_follows_the_signature(ends: list[Outcome], code: int, seen: ProbeResult) -> None:
    """Another failure is a skip (125), never bad (1)."""
    records = [record_of(catalogs.planned(repositories.KNOWN), outcome) for outcome in ends]

    assert exit_code(records) == code
    assert [seen_of(record) for record in records] == [seen]


def test_one_bad_case_makes_the_commit_bad() -> None:
    item = catalogs.planned(repositories.KNOWN)
    ends = (Outcome(OutcomeKind.PASSED), catalogs.shown(repositories.ENTRY), STRANGE)
    good, bad, strange = (record_of(item, outcome) for outcome in ends)

    assert [exit_code(group) for group in ([good, bad], [good, strange], [bad, strange], [])] == [1, 125, 1, 125]


def returned(value: object) -> Record:
    outcome = Outcome(OutcomeKind.PASSED, ranks=(RankEnd(0, 0, returned=True, value=value),))
    return record_of(catalogs.planned(repositories.KNOWN), outcome)


@pytest.mark.parametrize(
    ("value", "repeats", "numbers"),
    [(None, 1, ()), ({}, 1, ()), ({METRIC: [2.0, 4.0]}, 1, (2.0, 4.0)), ({METRIC: [1.0, 2.0, 6.0]}, 3, (3.0,))],
)
def test_each_run_has_a_number_or_their_mean(value: object, repeats: int, numbers: tuple[float, ...]) -> None:
    """A run without a number is a skip."""
    assert numbers_of(returned(value), repeats) == numbers
    assert metric_of(returned(value), repeats) == (numbers or ProbeResult.SKIP)
    assert numbers_of(replace(returned(value), outcome=Outcome(OutcomeKind.PASSED))) == ()


def test_diverged_number_has_a_name() -> None:
    record = returned({METRIC: ["nan"]})
    assert (metric_of(record), diverged_of(record)) == (ProbeResult.SKIP, ProbeResult.BAD)
    assert why(record) == "the metric is nan"
    assert diverged_of(returned({METRIC: [1.0]})) is ProbeResult.GOOD
    assert diverged_of(returned({})) is ProbeResult.SKIP


def test_runs_that_passed_in_one_rank_all_count() -> None:
    assert runs_of_record(returned({RUNS: 3})) == (ProbeResult.GOOD,) * 3
    assert runs_of_record(returned(None)) == (ProbeResult.GOOD,)


def test_second_bisection_in_a_store_is_refused(tmp_path: Path) -> None:
    """With --no-cache it would delete the journals that the first one writes."""
    store = ProbeStore(tmp_path / "store")
    kept = tmp_path / "store/1/journal"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.touch()
    for fresh in (False, True):
        with pytest.raises(MatrixError, match="another process works on this bisection"):
            ProbeStore(tmp_path / "store", fresh=fresh)
    assert kept.exists()
    store.close()
    ProbeStore(tmp_path / "store", fresh=True).close()
    assert not kept.exists()


# A line of MCoreSavePlanner.create_local_plan in 0.8.0, which 0.9.0, 0.10.0 and 0.16.0 changed.
FRAME = Frame("/env/megatron/core/dist_checkpointing/strategies/torch.py", 450, "create_local_plan")
SHOWN = catalogs.shown(repositories.ENTRY)
TRACED = replace(SHOWN, chain=(replace(SHOWN.chain[0], frames=(FRAME, Frame("/env/torch/planner.py", 9, "plan"))),))
ON = repositories.on("torch-2.4.0")
RELEASES = ["0.8.0", "0.9.0", "0.10.0", "0.11.0", "0.12.0", "0.12.1", "0.13.0", "0.14.0", "0.15.0", "0.16.0", "0.17.0"]


def axis_of_releases() -> BisectionAxis:
    subject = Subject(
        repositories.KNOWN, repositories.ENTRY, catalogs.case(), Level.CPU, repositories.on("torch-2.4.0")
    )
    points = tuple(AxisPoint(version, version) for version in RELEASES)
    order = Ancestry.chain(len(points))
    return BisectionAxis(MCORE, points, order, lambda place: subject.with_(MCORE, RELEASES[place]).planned())


@pytest.mark.parametrize(("fixed", "probed"), [("0.16.0", (5, 6)), ("0.10.0", (4, 5)), ("0.15.0", (7, 5))])
def test_releases_that_change_the_frame_go_first(tmp_path: Path, fixed: str, probed: tuple[int, int]) -> None:
    """The note compares with the search without that order, which is computed."""
    bad = RELEASES[: RELEASES.index(fixed)]
    probe = repositories.FakeProbe(lambda item: TRACED if repositories.revision(item) in bad else PASSED)
    session, axis = BisectionSession(probe, ProbeStore(tmp_path), lambda report: None), axis_of_releases()
    subject = Subject(
        repositories.KNOWN, repositories.ENTRY, catalogs.case(), Level.CPU, repositories.on("torch-2.4.0")
    )
    found = bisect(subject, axis, ProbeResult.BAD, Plan(), session)
    assert axis.points[found.result.candidates[0]].id == fixed
    assert len(probe.probed) == probed[0]
    name = "megatron/core/dist_checkpointing/strategies/torch.py:MCoreSavePlanner.create_local_plan"
    assert found.notes == (
        f"3 of 11 points change {name}, which is on the traceback: tried first; {probed[0]} points were probed, "
        f"{probed[1]} without that order",
    )


def test_releases_without_commits_go_first() -> None:
    """2.7.0 and 2.10.0 changed the function."""
    frame = Frame("/env/torch/distributed/checkpoint/default_planner.py", 391, "create_default_global_save_plan")
    traced = replace(SHOWN, chain=(replace(SHOWN.chain[0], frames=(frame,)),))
    points = tuple(AxisPoint(version, version) for version in ("2.4.0", "2.5.0", "2.8.0", "2.9.0", "2.11.0"))
    axis = replace(axis_of_releases(), component="torch", points=points, order=Ancestry.chain(5))
    source, in_function, _ = changing_frame(axis, record_of(catalogs.planned(repositories.KNOWN), traced))
    assert (source.rpartition(":")[2], in_function) == ("create_default_global_save_plan", {2, 4})


def test_frame_of_no_project_suspects_nothing() -> None:
    record = record_of(catalogs.planned(repositories.KNOWN), SHOWN)
    assert changing_frame(axis_of_releases(), record) == ("", set(), set())
