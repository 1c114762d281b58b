"""The expectation of a case in a run, and its source."""

from __future__ import annotations

from dataclasses import dataclass

from matrix.ground.cases.cells import masked_by
from matrix.ground.catalog.cell import Cell
from matrix.ground.catalog.failure import Expectation, Failure, Rule
from matrix.ground.catalog.model import Catalog
from matrix.ground.verdicts.planned import ReasonKind
from matrix.ground.verdicts.record import Record

NO_RULE = "no rule"
PLANNED = "as planned"


@dataclass(frozen=True)
class Grounds:
    """An expectation, its rule, and the reason."""

    expectation: Expectation
    rule: str
    reason: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.reason}" if self.reason else self.rule


def of_rule(expectation: Expectation, rule: Rule | None) -> Grounds:
    """Return the basis of a catalog rule; `rule` is None if no rule applies."""
    return Grounds(expectation, str(rule) if rule else NO_RULE, rule.reason if rule else "")


def of_cell(catalog: Catalog, failure: Failure, cell: Cell, case: str = "") -> Grounds:
    """Return the catalog's expectation for a case in a cell; without a case, for the failure as a whole."""
    ruled = failure.ruling(cell.stack, case)
    basis = of_rule(ruled.expectation, ruled.rule)
    masked = masked_by(catalog, failure, cell.stack, case)
    if masked is None:
        return basis
    return Grounds(basis.expectation, basis.rule, f"{basis.reason}; masked: {masked}".removeprefix("; "))


def of_record(catalog: Catalog, failure: Failure, record: Record) -> Grounds:
    """Return the expectation that the record's verdict is based on, also if the catalog now differs.

    They differ if a source was given with its own expectation, or if the catalog has changed since the run.
    """
    ruling = of_cell(catalog, failure, record.cell, record.case)
    if ruling.expectation is record.expectation:
        return ruling
    source = next((str(reason) for reason in record.why if reason.kind is ReasonKind.SOURCE), PLANNED)
    return Grounds(record.expectation, source, f"catalog: {ruling.expectation.value}, {ruling}")
