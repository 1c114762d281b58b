"""The calls from a Megatron-LM to one function of a Transformer Engine.

`outcome_of` judges those of a contract failure; the others are matrix.kit.preflight.Contracts.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from matrix.catalog.failure import ContractCall
from matrix.contract import reading
from matrix.contract.api import Surface
from matrix.contract.comparison import find
from matrix.contract.finding import Finding, FindingKind
from matrix.contract.guard import Judge, Truth
from matrix.contract.recording import released
from matrix.contract.uses import Calls, Use
from matrix.kit.preflight import Call, Error
from matrix.verdicts.outcome import Outcome, OutcomeKind

__all__ = ["call", "outcome_of", "released", "takes", "version"]

# The findings that count as this failure. A call that fails outright is not misbound: another failure, and no pass.
BREAKS: Final = {"definite": (FindingKind.DEFINITE,), "misbound": (FindingKind.MISBOUND, FindingKind.DEFINITE)}


def outcome_of(call: ContractCall, calls: Calls, surface: Surface, te_version: str | None = None) -> Outcome:
    """Return RAISED if a use of the callee breaks in the way that `call` describes, else PASSED.

    Python raises nothing for an argument that lands on the wrong parameter; the outcome then holds a Misbound. The
    reason of a pass lists the other findings of the callee. `te_version` as in `find`.
    """
    findings = [
        finding
        for finding in find(calls, surface, te_version)
        if re.search(call.callee, finding.callee) and re.search(call.caller or "", finding.call_site.function)
    ]
    breaks = [finding for finding in findings if finding.kind in BREAKS[call.kind]]
    if breaks:
        return Outcome(OutcomeKind.RAISED, _render(breaks[0]), chain=tuple(finding.raised for finding in breaks))
    return Outcome(OutcomeKind.PASSED, "; ".join(map(_render, findings)))


def _render(finding: Finding) -> str:
    return f"{finding.kind.value} at {finding.call_site}: {finding.message}"


def version(te: str) -> str:
    """Return the version of the Transformer Engine that `te` names. Raises MatrixError."""
    return _surface_of(te).version


def takes(te: str, path: str, parameter: str) -> bool | None:
    """Return whether the callable at `path` ("module:name") has a parameter; None if that is unknown."""
    return _surface_of(te).takes(path, parameter)


@cache
def call(mcore: str, te: str, function: str) -> Call:
    """Return the call from `mcore` to a function of `te`, given by its bare name. Raises MatrixError."""
    calls, surface = _calls_around(mcore, function), _surface_of(te)
    judge = Judge(surface, surface.version)
    passing = (use for use in calls.uses if _names(use, function) and use.arguments)
    reached = [use for use in passing if judge.truth(use.guard) is not Truth.NO]
    breaks = [finding for finding in find(calls, surface) if finding.kind is FindingKind.DEFINITE]
    return Call(
        site=str(reached[0].site) if reached else "",
        keywords=frozenset(name for use in reached if use.arguments for name, _ in use.arguments.keywords),
        error=Error(breaks[0].exception, breaks[0].message) if breaks else None,
    )


_surface_of = cache(reading.surface_of)


@cache
def _calls_around(mcore: str, function: str) -> Calls:
    """Return the uses of a Megatron-LM in the functions that call `function`."""
    calls = reading.calls_of(mcore)
    callers = {(use.site.path, use.site.function) for use in calls.uses if _names(use, function)}
    uses = [use for use in calls.uses if (use.site.path, use.site.function) in callers]
    return Calls(calls.version, uses, calls.origin)


def _names(use: Use, function: str) -> bool:
    return use.path.endswith((f":{function}", f".{function}"))
