"""The expectation of a catalog entry for a cell."""

from __future__ import annotations

import pytest

from matrix.catalog.cell import Cell
from matrix.catalog.failure import Expectation, Failure, Stack, StandIn
from tests.unit.catalogs import clause, failure, real

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
    assert expectation is ENTRY.expectation(Cell("some", torch, core))


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
    assert expectation is CONTROLLED.expectation(Cell("some", "2.4.0", core), case)


def test_the_first_stand_in_that_fits_is_taken() -> None:
    old, new = (StandIn(clause(mcore=bound), "absent", ("apex",)) for bound in ("<0.8", "<0.9"))
    entry = failure(stand_in=(old, new))
    chosen = [entry.stand_in_for(Cell("some", "2.4.0", core)) for core in ("0.7.0", "0.8.0", "0.9.0")]
    assert [old, new, None] == chosen


@pytest.mark.parametrize(
    ("entry", "stack"),
    [pytest.param(entry, stack, id=stack.name) for entry in real().failures for stack in entry.stack],
)
def test_the_stack_of_a_report_is_expected_broken(entry: Failure, stack: Stack) -> None:
    axes = {name: value for name, value in vars(stack.cell).items() if value is not None}
    cell = real().cell(axes.pop("base"), **axes)
    assert Expectation.BROKEN is entry.expectation(cell)
