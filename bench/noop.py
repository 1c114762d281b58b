"""A pytest plugin: a case reads nothing and passes. The rest is the project's overhead (bench/bench_slurm.py)."""

from __future__ import annotations

import pytest

from matrix.catalog.cell import Cell
from matrix.catalog.failure import Case, Failure
from matrix.execution import session
from matrix.verdicts.outcome import Outcome, OutcomeKind


def read_nothing(failure: Failure, case: Case, cell: Cell) -> Outcome:
    return Outcome(OutcomeKind.PASSED)


def pytest_configure() -> None:
    """Replace the function that reads both sides, for the life of the process."""
    pytest.MonkeyPatch().setattr(session, "read_case", read_nothing)
