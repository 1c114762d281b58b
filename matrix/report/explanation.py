"""The explanation of a cell, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from matrix.planning.explain import Explanation, FailureInCell
from matrix.report.terminal import Part, Prose, table


def render(explanation: Explanation) -> Iterator[Part]:
    """Yield the cell, then each failure with its expectation, rule, reason and cases of the night."""
    cell = explanation.cell
    yield cell.id
    yield Prose(f"base: {explanation.base}, torch {cell.torch}, Python {cell.python}; {explanation.twin}", 2)
    if explanation.excluded:
        yield Prose(f"excluded: {explanation.excluded}", 2)
    for one in explanation.failures:
        yield ""
        yield table([(f"{one.failure.id}:", one.failure.title)], indent=2)
        yield table(_facts(one), indent=4)


def _facts(one: FailureInCell) -> Iterator[tuple[str, str]]:
    yield "expected:", one.expectation.value
    if one.rule:
        yield "rule:", str(one.rule)
    yield "reason:", one.reason
    if one.masked:
        yield "masked:", f"{one.masked}; not planned in this cell"
    for case in one.night:
        item = case.planned
        expected = "" if item.expectation is one.expectation else f", expected: {item.expectation.value}"
        yield "night:", f"{item.case} at level {item.level.value}{expected} ({case.here})"
        yield from (("", str(why)) for why in item.why)
    if not one.night:
        yield "night:", "no case"
