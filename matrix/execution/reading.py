"""A case at level contract: both APIs are read, and no upstream code runs."""

from __future__ import annotations

from matrix.catalog.cell import Cell
from matrix.catalog.failure import Case, Failure
from matrix.contract import calling, reading
from matrix.execution.preflights import preflight_outcome
from matrix.verdicts.outcome import Outcome


def read_case(failure: Failure, case: Case, cell: Cell) -> Outcome:
    """Return the outcome of the failure's call in a cell, or of its preflight.py if the failure names no call.

    Raises MatrixError for a release that is not recorded.
    """
    if failure.contract:
        return calling.outcome_of(failure.contract, reading.calls_of(cell.mcore), reading.surface_of(cell.te))
    return preflight_outcome(failure.folder, cell, case.launcher, case.ranks, case.arguments, calling)
