"""An exception as plain values: its chain with the root cause first, limited in size for a pipe."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any, Final

from matrix.verdicts.outcome import Frame, Raised

MESSAGE: Final = 16_384  # characters of a message; a CheckpointException, which quotes each failed rank, had 1,000
FRAMES: Final = 100  # per exception; a failed save on megatron-core had 8
EXCEPTIONS: Final = 20  # per chain; a failed save on megatron-core had 2


def chain_of(error: BaseException) -> tuple[Raised, ...]:
    """Return `error` and the exceptions that led to it, root cause first.

    Follows `__cause__`, `__context__` and, if present, `failures`: torch's CheckpointException stores there, for each
    failed rank, the exception and its stack in that rank.
    """
    chain = _collect(error, None, set())
    return tuple(chain if len(chain) <= EXCEPTIONS else chain[: EXCEPTIONS - 1] + chain[-1:])


def _collect(error: BaseException, stack: list[Frame] | None, seen: set[int]) -> list[Raised]:
    """Return the chain that ends with `error`; `stack` replaces a traceback of another process."""
    line: list[BaseException] = []  # from `error` to its root; iterative, because retries can make it thousands long
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        line.append(cause)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    chain: list[Raised] = []
    for link in reversed(line):
        for failure, frames in _failures(link):
            chain += _collect(failure, frames, seen)
        walk = traceback.walk_tb(link.__traceback__)
        frames = [Frame(frame.f_code.co_filename, line or 0, frame.f_code.co_name) for frame, line in walk]
        frames = stack if stack and link is error else frames
        # The outermost and the innermost frames.
        frames = frames if len(frames) <= FRAMES else frames[: FRAMES // 2] + frames[-FRAMES // 2 :]
        chain.append(Raised(type(link).__name__, _message(link), tuple(frames)))
    return chain


def _failures(error: BaseException) -> list[tuple[BaseException, list[Frame]]]:
    """Return the values of `error.failures`, lowest rank first; [] if it does not map ranks to failures."""
    failures = getattr(error, "failures", None)
    if not isinstance(failures, Mapping):
        return []
    pairs = [failures[rank] for rank in sorted(failures, key=str)]
    return [
        (pair[0], _summary(pair[1]))
        for pair in pairs
        if isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], BaseException)
    ]


def _summary(stack: Any) -> list[Frame]:
    if not isinstance(stack, traceback.StackSummary):
        return []
    return [Frame(frame.filename, frame.lineno or 0, frame.name) for frame in stack]


def _message(error: BaseException) -> str:
    try:
        message = str(error)
    except Exception as unprintable:
        return f"<its message can't be formatted: {type(unprintable).__name__}>"
    return message if len(message) <= MESSAGE else message[: MESSAGE // 2] + " [...] " + message[-MESSAGE // 2 :]
