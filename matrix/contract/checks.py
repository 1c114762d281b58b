"""Failures of the catalog that are one call into Transformer Engine, judged by reading both sides."""

from __future__ import annotations

import re
from typing import Final

from matrix.catalog.failure import ContractCall
from matrix.contract.finding import Finding, FindingKind, find
from matrix.contract.surface import Surface
from matrix.contract.usage import Calls
from matrix.verdicts.outcome import Outcome, OutcomeKind

# What counts as this failure. A call that can't be made at all has not shifted: that is another failure, and no pass.
BREAKS: Final = {"definite": (FindingKind.DEFINITE,), "misbound": (FindingKind.MISBOUND, FindingKind.DEFINITE)}


def outcome_of(call: ContractCall, calls: Calls, surface: Surface, te_version: str | None = None) -> Outcome:
    """Return what the uses of a callee come to: raised where one breaks in the way of `call`.

    Where an argument lands on another parameter than its caller means, Python raises nothing; here it is a Misbound.
    The reason names what else was found of the callee. `te_version` as in `find`.
    """
    found = [one for one in find(calls, surface, te_version) if re.search(call.callee, one.callee)]
    broken = [one for one in found if one.kind in BREAKS[call.kind]]
    if broken:
        return Outcome(OutcomeKind.RAISED, _render(broken[0]), chain=tuple(one.raised for one in broken))
    return Outcome(OutcomeKind.PASSED, "; ".join(map(_render, found)))


def _render(finding: Finding) -> str:
    return f"{finding.kind.value} at {finding.call_site}: {finding.message}"
