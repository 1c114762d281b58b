"""Level contract: the recorded calls of a Megatron-LM, held against the recorded surface of a Transformer Engine."""

from __future__ import annotations

import re

from matrix.cell import Cell
from matrix.contract import reading
from matrix.contract.finding import Finding, Kind, find
from matrix.outcome import Outcome, OutcomeKind, Raised


def outcome_of(cell: Cell, callee: str, kind: Kind = Kind.DEFINITE) -> Outcome:
    """Return what the uses of TE's names that match `callee` come to in the cell: raised where one is of `kind`.

    Where an argument lands on another parameter than its caller means, Python raises nothing; here it is a Misbound.
    What else was found of the callee is said in the reason. Raises MatrixError for a release that is not recorded.
    """
    found = find(reading.calls_of(cell.mcore), reading.surface_of(cell.te))
    found = [one for one in found if re.search(callee, one.callee)]
    broken = [one for one in found if one.kind is kind]
    if broken:
        chain = tuple(Raised(one.exception or "Misbound", one.message) for one in broken)
        return Outcome(OutcomeKind.RAISED, _told(broken[0]), chain=chain)
    return Outcome(OutcomeKind.PASSED, "; ".join(map(_told, found)))


def _told(finding: Finding) -> str:
    return f"{finding.kind.value} at {finding.call_site}: {finding.message}"
