"""The expectation of a catalog entry for a cell."""

from __future__ import annotations

import pytest

from matrix.catalog.failure import Expectation, Failure, ReportedStack, StandIn
from matrix.catalog.stack import Stack
from tests.unit.catalogs import cell, clause, failure, real, values

ENTRY = failure(affected=(clause(mcore="<0.9", torch=">=2.4"),), works=(clause(mcore=">=0.9"), clause(torch="<2.3")))


@pytest.mark.parametrize(
    ("torch", "core", "expectation"),
    [
        ("2.4.0", "0.8.0", Expectation.BROKEN),
        ("2.4.0", "0.9.0", Expectation.WORKS),
        ("2.2.2", "0.8.0", Expectation.WORKS),
        ("2.3.1", "0.8.0", Expectation.UNKNOWN),
    ],
)
def test_a_cell_is_broken_works_or_is_unknown(torch: str, core: str, expectation: Expectation) -> None:
    assert expectation is ENTRY.expectation(cell(torch=torch, mcore=core).stack)


CONTROLLED = failure(
    affected=(clause(mcore="<0.9"), clause(mcore="==0.9.0", cases=["mpi"])),
    works=(clause(mcore="<0.9", cases=["workaround"]), clause(mcore=">=0.9")),
)


@pytest.mark.parametrize(
    ("core", "case", "expectation"),
    [
        ("0.8.0", "", Expectation.BROKEN),
        ("0.8.0", "tp2", Expectation.BROKEN),
        ("0.8.0", "workaround", Expectation.WORKS),
        ("0.9.0", "workaround", Expectation.WORKS),
        ("0.9.0", "mpi", Expectation.BROKEN),
        ("0.9.0", "", Expectation.WORKS),
    ],
)
def test_a_rule_with_cases_takes_precedence(core: str, case: str, expectation: Expectation) -> None:
    assert expectation is CONTROLLED.expectation(cell(torch="2.4.0", mcore=core).stack, case)


def test_the_first_stand_in_that_fits_is_taken() -> None:
    old, new = (StandIn(clause(mcore=bound), "absent", ("apex",)) for bound in ("<0.8", "<0.9"))
    entry = failure(stand_in=(old, new))
    chosen = [entry.stand_in_for(cell(torch="2.4.0", mcore=core).stack) for core in ("0.7.0", "0.8.0", "0.9.0")]
    assert [old, new, None] == chosen


@pytest.mark.parametrize(
    ("entry", "stack"),
    [pytest.param(entry, stack, id=stack.name) for entry in real().failures for stack in entry.stack],
)
def test_the_stack_of_a_report_is_expected_broken(entry: Failure, stack: ReportedStack) -> None:
    assert Expectation.BROKEN is entry.expectation(real().cell_named(stack.cell).stack)


DRIVEN = failure(
    affected=(clause(mcore="<0.9", numpy=">=2"), clause(mcore="<0.9", driver="<500", cases=["mpi"])),
    works=(clause(mcore="<0.9", driver=">=500"), clause(mcore=">=0.9")),
)


@pytest.mark.parametrize(
    ("versions", "case", "expectation", "depends"),
    [
        ({"mcore": "0.8.0", "numpy": "2.1"}, "", Expectation.BROKEN, []),
        ({"mcore": "0.8.0"}, "", Expectation.UNKNOWN, [("numpy",)]),
        ({"mcore": "0.8.0", "driver": "535"}, "", Expectation.UNKNOWN, [("numpy",)]),
        ({"mcore": "0.8.0", "driver": "535", "numpy": "none"}, "", Expectation.WORKS, []),
        ({"mcore": "0.8.0", "numpy": "1.26"}, "", Expectation.UNKNOWN, []),
        ({"mcore": "0.8.0", "numpy": "1.26"}, "mpi", Expectation.UNKNOWN, [("driver",)]),
        ({"numpy": "2.1"}, "", Expectation.UNKNOWN, [("megatron-core",)]),
        ({"mcore": "0.9.0"}, "", Expectation.WORKS, []),
        ({}, "", Expectation.UNKNOWN, [("megatron-core", "numpy")]),
    ],
)
def test_unknown_component_leaves_a_rule_open(
    versions: dict[str, str], case: str, expectation: Expectation, depends: list[tuple[str, ...]]
) -> None:
    """Absent and unknown differ: what is absent is in no range, and on what is unknown the rule depends."""
    ruling = DRIVEN.ruling(Stack(values(**versions)), case)
    assert (ruling.expectation, [names for _, names in ruling.may_break]) == (expectation, depends)
