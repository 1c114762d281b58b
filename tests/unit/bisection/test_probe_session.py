"""The store of a bisection; what a record means to it and to `git bisect run`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from matrix.bisection.noise import ProbeResult
from matrix.bisection.probe_session import ProbeStore, exit_code, metric_of, number_of, seen_of
from matrix.errors import MatrixError
from matrix.kit.command import METRIC
from matrix.verdicts.outcome import Outcome, OutcomeKind, Raised, RankEnd
from tests.unit import catalogs
from tests.unit.bisection import repositories
from tests.unit.bisection.repositories import record_of

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


@pytest.mark.parametrize(
    ("value", "number"),
    [(None, None), ({}, None), ({METRIC: []}, None), ({METRIC: [2.0]}, 2.0), ({METRIC: [1.0, 2.0, 6.0]}, 3.0)],
)
def test_metric_is_the_mean_of_repeats(value: object, number: float | None) -> None:
    """A run without a number is a skip."""
    outcome = Outcome(OutcomeKind.PASSED, ranks=(RankEnd(0, 0, returned=True, value=value),))
    record = record_of(catalogs.planned(repositories.KNOWN), outcome)

    assert number_of(record) == number
    assert metric_of(record) == (ProbeResult.SKIP if number is None else number)
    assert number_of(replace(record, outcome=Outcome(OutcomeKind.PASSED))) is None


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
