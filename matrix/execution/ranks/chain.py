"""An exception as plain values: its chain, root cause first, bounded so that it fits through a pipe."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final

from matrix.verdicts.outcome import Frame, Raised

MESSAGE: Final = 16_384  # characters of a message; CheckpointException, which quotes each failed rank, had 1,000
FRAMES: Final = 100  # of one exception; a save on megatron-core that failed had 8
EXCEPTIONS: Final = 20  # of one chain; a save on megatron-core that failed had 2


def chain_of(error: BaseException) -> tuple[Raised, ...]:
    """Return `error` and what led to it, root cause first.

    The way back goes along `__cause__`, `__context__` and, where an exception has it, `failures`: torch's
    CheckpointException keeps there, for each failed rank, the exception and the stack it had in that rank.
    """
    chain = _collect(error, None, set())
    return tuple(chain if len(chain) <= EXCEPTIONS else chain[: EXCEPTIONS - 1] + chain[-1:])


def _collect(error: BaseException, stack: list[Frame] | None, seen: set[int]) -> list[Raised]:
    """Return the chain that ends with `error`; `stack` stands in for a traceback that stayed in another process."""
    line: list[BaseException] = []  # from `error` back to its root; a loop, for retries can make it thousands long
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        line.append(cause)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    chain: list[Raised] = []
    for link in reversed(line):
        for failure, there in _failures(link):
            chain += _collect(failure, there, seen)
        frames = stack if stack and link is error else _frames(link.__traceback__)
        chain.append(Raised(type(link).__name__, _message(link), _ends(frames)))
    return chain


def _failures(error: BaseException) -> list[tuple[BaseException, list[Frame]]]:
    """Return what `error.failures` maps ranks to, lowest rank first; nothing where it is no such mapping."""
    failures = getattr(error, "failures", None)
    if not isinstance(failures, Mapping):
        return []
    pairs = [failures[rank] for rank in sorted(failures, key=str)]
    return [
        (pair[0], _summary(pair[1]))
        for pair in pairs
        if isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], BaseException)
    ]


def _frames(stack: TracebackType | None) -> list[Frame]:
    return [
        Frame(frame.f_code.co_filename, line or 0, frame.f_code.co_name) for frame, line in traceback.walk_tb(stack)
    ]


def _summary(stack: Any) -> list[Frame]:
    if not isinstance(stack, traceback.StackSummary):
        return []
    return [Frame(frame.filename, frame.lineno or 0, frame.name) for frame in stack]


def _ends(frames: list[Frame]) -> tuple[Frame, ...]:
    """Return at most FRAMES of them, from both ends: the way in and the place of the error."""
    return tuple(frames if len(frames) <= FRAMES else frames[: FRAMES // 2] + frames[-FRAMES // 2 :])


def _message(error: BaseException) -> str:
    try:
        message = str(error)
    except Exception as unprintable:
        return f"<its message cannot be made: {type(unprintable).__name__}>"
    return message if len(message) <= MESSAGE else message[: MESSAGE // 2] + " [...] " + message[-MESSAGE // 2 :]
