"""A pytest plugin: a case reads nothing and passes. What is left is what the project costs (bench/bench_slurm.py)."""

from __future__ import annotations

import pytest

from matrix.catalog.cell import Cell
from matrix.catalog.failure import Case, Failure
from matrix.execution import session
from matrix.verdicts.outcome import Outcome, OutcomeKind


def read_nothing(failure: Failure, case: Case, cell: Cell) -> Outcome:
    return Outcome(OutcomeKind.PASSED)


def pytest_configure() -> None:
    """Take the place of what reads both sides, for as long as the process lives."""
    pytest.MonkeyPatch().setattr(session, "read_case", read_nothing)
