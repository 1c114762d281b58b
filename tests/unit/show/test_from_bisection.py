"""The answer of `megatrix bisect` as findings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from matrix.prove.bisection.search import ResultKind
from matrix.show.findings import Severity, of_bisection
from tests.unit.show.samples import attribution, bisection


@pytest.mark.parametrize(
    ("kind", "severity"), [(ResultKind.FIRST_BAD, Severity.ERROR), (ResultKind.AMBIGUOUS, Severity.WARNING)]
)
def test_ambiguous_change_is_a_warning(kind: ResultKind, severity: Severity) -> None:
    summary = bisection("x")
    changes = {axis: replace(change, kind=kind, flips=()) for axis, change in summary.changes.items()}
    (finding,) = of_bisection(replace(summary, changes=changes)).findings
    assert (finding.topic.id, finding.severity, finding.place) == ("x", severity, None)


def test_change_names_its_sides_and_commands() -> None:
    (finding,) = of_bisection(bisection("x")).findings
    assert finding.headline == "first bad: Megatron-LM x"
    assert finding.message == "first bad: Megatron-LM x; before it: x; may be: x; good: x; bad: x; skip: x"


def test_guilty_packages_come_before_their_changes() -> None:
    packages, change = of_bisection(attribution("x")).findings
    assert packages.message == "guilty: ; the stacks differ in x x -> x"
    assert change.headline == "first bad: Megatron-LM x"
