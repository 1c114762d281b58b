"""The store of a bisection; what a record means to it and to `git bisect run`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind, Raised, RankEnd
from matrix.ground.verdicts.record import Record
from matrix.kit.command import METRIC, RUNS
from matrix.prove.bisection.noise import ProbeResult
from matrix.prove.bisection.probe_session import (
    ProbeStore,
    diverged_of,
    exit_code,
    metric_of,
    numbers_of,
    runs_of_record,
    seen_of,
    why,
)
from tests.unit import catalogs
from tests.unit.prove.bisection import repositories
from tests.unit.prove.bisection.repositories import record_of

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
