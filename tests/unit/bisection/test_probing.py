"""What a record means to a bisection and to `git bisect run`; which points are read without a cell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from matrix.bisection import probing
from matrix.bisection.noise import ProbeResult
from matrix.bisection.probing import exit_code, metric_of, number_of, seen_of
from matrix.catalog.failure import Axis, ContractCall, Level, Signature
from matrix.kit.command import METRIC
from matrix.verdicts.outcome import Outcome, OutcomeKind, Raised, RankEnd
from tests.unit import catalogs
from tests.unit.bisection import repositories
from tests.unit.bisection.repositories import record_of
from tests.unit.catalogs import case, failure

STRANGE = Outcome(OutcomeKind.RAISED, "rank 0 raised: KeyError", 0, chain=(Raised("KeyError", "'loss'"),))
OFFLOAD_ENTRY = failure(
    "offload-breaks",
    axes=(Axis.MCORE, Axis.TE),
    signature=(Signature("count", exception="TypeError"),),  # type: ignore[arg-type]
    case=(case("contract", (Level.CONTRACT,), 1, 0),),
    contract=ContractCall("get_cpu_offload_context$"),  # type: ignore[arg-type]
)


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


def test_a_recorded_build_needs_no_clone() -> None:
    """Level contract reads megatron-lm@REV from its recorded calls."""
    item = catalogs.planned(repositories.KNOWN, source="megatron-lm@094d66b488")

    assert probing.contract_line(item) == "megatrix contract --mcore 0.8.0 --te none"
    assert probing.reads_only(OFFLOAD_ENTRY, Level.CONTRACT)
    assert not probing.reads_only(OFFLOAD_ENTRY, Level.CPU)
    assert not probing.reads_only(repositories.ENTRY, Level.CONTRACT)


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
