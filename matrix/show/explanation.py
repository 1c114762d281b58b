"""The explanation of a cell, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from matrix.ground.catalog.model import HOST
from matrix.ground.catalog.stack import DRIVER, PYTHON, TORCH
from matrix.prove.planning.cell_explanation import Explanation, FailureInCell
from matrix.show.terminal import Part, Prose, table


def render(explanation: Explanation) -> Iterator[Part]:
    """Yield the cell, then each failure with its expectation, rule, reason and cases of the night, or here."""
    cell = explanation.cell
    yield cell.id
    yield Prose(
        f"base: {explanation.base}, torch {cell.stack[TORCH]}, Python {cell.stack[PYTHON]}; {explanation.twin}", 2
    )
    if explanation.excluded:
        yield Prose(f"excluded: {explanation.excluded}", 2)
    if explanation.driver:
        yield Prose(f"driver {cell.stack[DRIVER]}: {explanation.driver.fit.value}; {explanation.driver.reason}", 2)
    for failure in explanation.failures:
        yield ""
        yield table([(f"{failure.failure.id}:", failure.failure.title)], indent=2)
        yield table(_facts(failure, "here:" if cell.base == HOST else "night:"), indent=4)


def _facts(failure: FailureInCell, cases: str) -> Iterator[tuple[str, str]]:
    yield "expected:", failure.ruling.expectation.value
    if failure.ruling.rule:
        yield "rule:", str(failure.ruling.rule)
    yield "reason:", failure.reason
    if failure.masked:
        yield "masked:", f"{failure.masked}; not planned in this cell"
    for case in failure.night:
        planned = case.planned
        expected = (
            "" if planned.expectation is failure.ruling.expectation else f", expected: {planned.expectation.value}"
        )
        yield cases, f"{planned.case} at level {planned.level.value}{expected} ({case.here})"
        yield from (("", str(why)) for why in planned.why)
    if not failure.night:
        yield cases, "no case"
