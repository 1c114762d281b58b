"""The outcome of a contract failure: one call into Transformer Engine, checked by reading both sides."""

from __future__ import annotations

import re
from typing import Final

from matrix.catalog.failure import ContractCall
from matrix.contract.finding import Finding, FindingKind, find
from matrix.contract.surface import Surface
from matrix.contract.usage import Calls
from matrix.verdicts.outcome import Outcome, OutcomeKind

# The findings that count as this failure. A call that fails outright is not misbound: another failure, and no pass.
BREAKS: Final = {"definite": (FindingKind.DEFINITE,), "misbound": (FindingKind.MISBOUND, FindingKind.DEFINITE)}


def outcome_of(call: ContractCall, calls: Calls, surface: Surface, te_version: str | None = None) -> Outcome:
    """Return RAISED if a use of the callee breaks in the way that `call` describes, else PASSED.

    Python raises nothing for an argument that lands on the wrong parameter; the outcome then holds a Misbound. The
    reason of a pass lists the other findings of the callee. `te_version` as in `find`.
    """
    found = [
        one
        for one in find(calls, surface, te_version)
        if re.search(call.callee, one.callee) and re.search(call.caller or "", one.call_site.function)
    ]
    broken = [one for one in found if one.kind in BREAKS[call.kind]]
    if broken:
        return Outcome(OutcomeKind.RAISED, _render(broken[0]), chain=tuple(one.raised for one in broken))
    return Outcome(OutcomeKind.PASSED, "; ".join(map(_render, found)))


def _render(finding: Finding) -> str:
    return f"{finding.kind.value} at {finding.call_site}: {finding.message}"
