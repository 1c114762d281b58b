"""A pytest plugin: a case reads nothing and passes. The rest is the project's overhead (bench/bench_slurm.py)."""

from __future__ import annotations

import pytest

from matrix.ground.catalog.failure import Case, Failure
from matrix.ground.catalog.stack import Cell
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.prove.execution import session


def read_nothing(failure: Failure, case: Case, cell: Cell) -> Outcome:
    return Outcome(OutcomeKind.PASSED)


def pytest_configure() -> None:
    """Replace the function that reads both sides, for the life of the process."""
    pytest.MonkeyPatch().setattr(session, "read_case", read_nothing)
