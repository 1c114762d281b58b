"""Level contract: the recorded calls of a Megatron-LM, held against the recorded surface of a Transformer Engine."""

from __future__ import annotations

from matrix.cell import Cell
from matrix.contract import reading
from matrix.contract.finding import Kind, find
from matrix.outcome import Outcome, OutcomeKind, Raised


def outcome_of(cell: Cell, callee: str) -> Outcome:
    """Return what a call of `callee` comes to in the cell: raised where it surely breaks, else passed.

    What is misbound or only possible is said in the reason; it is no exception. Raises MatrixError for a release that
    is not recorded.
    """
    found = [one for one in find(reading.calls_of(cell.mcore), reading.surface_of(cell.te)) if callee in one.callee]
    for one in found:
        if one.kind is Kind.DEFINITE:
            reason = f"{one.call_site}: {one.message}"
            return Outcome(OutcomeKind.RAISED, reason, chain=(Raised("TypeError", one.message),))
    return Outcome(OutcomeKind.PASSED, "; ".join(f"{one.kind.value}: {one.message}" for one in found))
