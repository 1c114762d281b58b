"""A case at level contract: both sides' API is read, and nothing of either is run."""

from __future__ import annotations

from matrix.catalog.cell import Cell
from matrix.catalog.failure import Case, Failure
from matrix.contract import calling, reading
from matrix.contract.checks import outcome_of
from matrix.execution.preflights import preflight_outcome
from matrix.verdicts.outcome import Outcome


def read_case(failure: Failure, case: Case, cell: Cell) -> Outcome:
    """Return what the failure's call comes to in a cell, or what its preflight.py answers where it names no call.

    Raises MatrixError for a release that is not recorded.
    """
    if failure.contract:
        return outcome_of(failure.contract, reading.calls_of(cell.mcore), reading.surface_of(cell.te))
    return preflight_outcome(failure.folder, cell, case.launcher, case.ranks, case.arguments, calling)
