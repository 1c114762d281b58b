"""What a run expected of a case, and where that comes from."""

from __future__ import annotations

from dataclasses import dataclass

from matrix.catalog.cell import Cell
from matrix.catalog.failure import Expectation, Failure, Rule
from matrix.catalog.model import Catalog
from matrix.planning.cases import masked_by
from matrix.verdicts.reason import ReasonKind
from matrix.verdicts.record import Record

NO_RULE = "no rule"
PLANNED = "as planned"


@dataclass(frozen=True)
class Ruling:
    """An expectation, the rule that it comes from, and the reason."""

    expectation: Expectation
    rule: str
    reason: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.reason}" if self.reason else self.rule


def of_rule(expectation: Expectation, rule: Rule | None) -> Ruling:
    """Return what a rule of the catalog says; None is no rule."""
    return Ruling(expectation, str(rule) if rule else NO_RULE, rule.reason if rule else "")


def of_cell(catalog: Catalog, failure: Failure, cell: Cell, case: str = "") -> Ruling:
    """Return what the catalog says of a case in a cell; without a case, of the failure as a whole."""
    ruling = of_rule(*failure.ruling(cell, case))
    masked = masked_by(catalog, failure, cell, case)
    if masked is None:
        return ruling
    return Ruling(ruling.expectation, ruling.rule, f"{ruling.reason}; masked: {masked}".removeprefix("; "))


def of_record(catalog: Catalog, failure: Failure, record: Record) -> Ruling:
    """Return what the run expected, which its verdict rests on, also where the catalog says something else.

    A person who gives a source expects of it what the catalog does not; and the catalog may have changed since.
    """
    ruling = of_cell(catalog, failure, record.cell, record.case)
    if ruling.expectation is record.expectation:
        return ruling
    given = next((str(reason) for reason in record.why if reason.kind is ReasonKind.SOURCE), PLANNED)
    return Ruling(record.expectation, given, f"the catalog says {ruling.expectation.value}: {ruling}")
