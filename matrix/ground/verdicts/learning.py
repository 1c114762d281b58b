"""Learn a signature from one outcome: an exception and its message, a signal and its stack, or a status and a line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from typing import Final

from matrix.ground.catalog.failure import Signature
from matrix.ground.catalog.schema import Identifier, Pattern
from matrix.ground.verdicts.crash import crashes
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind, Raised
from matrix.ground.verdicts.signature_match import SILENT

NAME: Final = "learned"
LONGEST: Final = 200  # characters of a message or line that are compared
# Letters in a row that make a message specific enough to go without its frame. A frame is left out where it can be: a
# refactoring moves it, and another place is then taken for another failure.
SPECIFIC: Final = 8
# What differs between two runs of one failure, and the pattern that replaces it.
_VARIABLE: Final = re.compile(
    r"(?P<address>0x[0-9a-fA-F]+)"
    r"|(?P<path>(?<![\w./~-])[\w.~-]*/[\w.~+/-]*)"
    r"|(?P<number>(?<![A-Za-z_])\d+(?:[.:]\d+)*(?:e[+-]?\d+)?)"
)
_PATTERNS: Final = {"address": "0x[0-9a-fA-F]+", "path": r"[\w.~+/-]+", "number": r"[\d.:e+-]+"}
# Frames of every abort, which name no cause.
_ENDS: Final = re.compile(
    r"_*(raise|gsignal|abort|terminate|pthread_kill\w*|restore_rt|libc_\w+|clone\d*|start_thread)$"
)
_FRAME: Final = re.compile(r"~?\w+(::~?\w+)*")


def learned(outcome: Outcome) -> Signature | None:
    """Return the signature of an outcome, None where it holds no evidence: a pass, a hang, no result."""
    if outcome.kind in (*SILENT, OutcomeKind.HUNG):
        return None
    if outcome.chain:
        return of_exception(outcome.chain[0])
    if outcome.signal is not None:
        return Signature(Identifier(NAME), signal=outcome.signal, stack=crashed_in(outcome))
    final_line = next((line for line in reversed(outcome.evidence.split("\n")) if line.strip()), "")
    pattern = Pattern(f"(?m)^{generalised(final_line)}") if final_line else None
    return Signature(Identifier(NAME), exit_code=outcome.exit_code, log=pattern)


def of_log(printed: Sequence[Raised], lines: Sequence[str]) -> Signature | None:
    """Return the signature of a log: of the exception that it printed last, else of its last line; None without one."""
    if printed:
        return of_exception(printed[-1])
    final_line = next((line for line in reversed(lines) if line.strip()), "")
    return Signature(Identifier(NAME), log=Pattern(f"(?m)^{generalised(final_line)}")) if final_line else None


def of_exception(raised: Raised) -> Signature:
    """Return the signature of an exception: its message, and its frame where the message alone is not specific."""
    line = raised.compared.strip().partition("\n")[0]
    message = Pattern(generalised(line)) if line else Pattern("^$") if not raised.message else None
    frame = raised.frames[-1] if raised.frames else None
    specific = sum(len(word) for word in re.findall(r"[^\W\d_]{3,}", _VARIABLE.sub(" ", line))) >= SPECIFIC
    frame_text = ""
    if frame and not specific and frame.function.isidentifier() and frame.file.endswith(".py"):
        frame_text = f"{frame.file.replace(':', '/').rpartition('/')[2]}:{frame.function}"
    return Signature(Identifier(NAME), exception=raised.type, message=message, frame=frame_text or None)


def crashed_in(outcome: Outcome) -> str | None:
    """Return the innermost function on the stack of the outcome's crash that is not part of every abort."""
    stacks = (crash.frames for crash in crashes(outcome.evidence) if crash.signal == outcome.signal)
    return next((name for name in chain(*stacks) if _FRAME.fullmatch(name) and not _ENDS.match(name)), None)


def generalised(text: str) -> str:
    """Return a pattern that matches the text with any addresses, numbers and paths; long texts are cut."""
    cut, pattern, end = text.rstrip()[:LONGEST], "", 0
    for variable in _VARIABLE.finditer(cut):
        pattern += _escaped(cut[end : variable.start()]) + _PATTERNS[str(variable.lastgroup)]
        end = variable.end()
    return pattern + _escaped(cut[end:])


def in_words(signature: Signature) -> str:
    """Return a learned signature for readers: what differs between two runs is "..."."""
    status = signature.exit_code is not None and f"status {signature.exit_code}"
    text = signature.message or signature.log or signature.stack or ""
    for pattern in _PATTERNS.values():
        text = text.replace(pattern, "...")
    text = re.sub(r"\\(\W)", r"\1", text.removeprefix("(?m)^").replace("^$", ""))
    parts = (signature.exception or signature.signal or status or "", text, signature.frame and f"in {signature.frame}")
    return ": ".join(part for part in parts if part)


def _escaped(text: str) -> str:
    """Return the pattern of a text, with its spaces as they are: a reader edits it."""
    return re.escape(text).replace("\\ ", " ")
