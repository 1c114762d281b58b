"""The API contracts between releases that a preflight asks for (matrix.kit.preflight.Contracts), from recorded APIs."""

from __future__ import annotations

from functools import cache

from matrix.kit.preflight import Call, Error
from matrix.read.api.comparison import calls_to
from matrix.read.api.recording import released as released
from matrix.read.api.sides import cached_calls, cached_surface


def version(te: str) -> str:
    """Return the version of the Transformer Engine that `te` names. Raises MatrixError."""
    return cached_surface(te).version


def takes(te: str, path: str, parameter: str) -> bool | None:
    """Return whether the callable at `path` ("module:name") has a parameter; None if that is unknown."""
    return cached_surface(te).takes(path, parameter)


@cache
def call(mcore: str, te: str, function: str) -> Call:
    """Return the call from `mcore` to a function of `te`, given by its bare name. Raises MatrixError."""
    reached, breaks = calls_to(function, cached_calls(mcore), cached_surface(te))
    return Call(
        site=str(reached[0].site) if reached else "",
        keywords=frozenset(name for use in reached if use.arguments for name, _ in use.arguments.keywords),
        error=Error(breaks[0].exception, breaks[0].message) if breaks else None,
    )
