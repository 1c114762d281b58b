"""Level contract: the preflight of tp-overlap on a case, LAUNCHER-BACKEND."""

from __future__ import annotations

from matrix.catalog.cell import Cell
from matrix.catalog.folders import FAILURES
from matrix.contract import calling
from matrix.execution.preflights import preflight_outcome
from matrix.verdicts.outcome import Outcome

RANKS = 2  # any number but 1 is the same failure
DEFAULT = "default"  # the backend of a job that names none


def outcome_of(cell: Cell, case: str) -> Outcome:
    """Return the outcome of a case. Raises MatrixError for a release that is not recorded."""
    launcher, _, backend = case.partition("-")
    arguments = {} if backend == DEFAULT else {"bootstrap": backend}
    return preflight_outcome(FAILURES / "tp_overlap", cell, launcher, RANKS, arguments, calling)
