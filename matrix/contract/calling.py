"""The calls from a Megatron-LM to one function of a Transformer Engine (matrix.kit.preflight.Contracts)."""

from __future__ import annotations

from functools import cache

from matrix.contract import reading
from matrix.contract.finding import FindingKind, find
from matrix.contract.guard import Judge, Truth
from matrix.contract.recording import released
from matrix.contract.surface import Surface
from matrix.contract.usage import Calls, Use
from matrix.kit.preflight import Call, Error

__all__ = ["call", "released", "takes", "version"]


def version(te: str) -> str:
    """Return the version of the Transformer Engine that `te` names. Raises MatrixError."""
    return _surface_of(te).version


def takes(te: str, path: str, parameter: str) -> bool | None:
    """Return whether the callable at `path` ("module:name") has a parameter; None if that is unknown."""
    return _surface_of(te).takes(path, parameter)


@cache
def call(mcore: str, te: str, function: str) -> Call:
    """Return the call from `mcore` to a function of `te`, given by its bare name. Raises MatrixError."""
    calls, surface = _calls_of(mcore, function), _surface_of(te)
    judge = Judge(surface, surface.version)
    reached = [
        use for use in calls.uses if _names(use, function) and use.arguments and judge.truth(use.guard) is not Truth.NO
    ]
    broken = [Error(one.exception, one.message) for one in find(calls, surface) if one.kind is FindingKind.DEFINITE]
    return Call(
        site=str(reached[0].site) if reached else "",
        keywords=frozenset(name for use in reached if use.arguments for name, _ in use.arguments.keywords),
        error=broken[0] if broken else None,
    )


@cache
def _surface_of(te: str) -> Surface:
    return reading.surface_of(te)


@cache
def _calls_of(mcore: str, function: str) -> Calls:
    """Return the uses of a Megatron-LM in the functions that call `function`."""
    calls = reading.calls_of(mcore)
    callers = {(use.site.path, use.site.function) for use in calls.uses if _names(use, function)}
    uses = [use for use in calls.uses if (use.site.path, use.site.function) in callers]
    return Calls(calls.version, uses, calls.origin)


def _names(use: Use, function: str) -> bool:
    return use.path.endswith((f":{function}", f".{function}"))
