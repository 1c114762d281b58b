"""Comparison of outcomes with signatures. It fails closed: a key without evidence does not match."""

from __future__ import annotations

import re
from collections.abc import Iterable

from matrix.ground.catalog.failure import Failure, Signature
from matrix.ground.verdicts.crash import crashes
from matrix.ground.verdicts.outcome import Frame, Outcome, OutcomeKind, Raised

# An outcome of these kinds holds nothing to compare with a signature.
SILENT = (OutcomeKind.PASSED, OutcomeKind.NOT_REACHED, OutcomeKind.UNAVAILABLE)


def matched(failure: Failure, outcome: Outcome) -> Signature | None:
    """Return the first signature of `failure` that `outcome` shows, None if it shows none."""
    if outcome.kind in SILENT:
        return None
    return next((signature for signature in failure.signature if shows(outcome, signature)), None)


def owner(failures: Iterable[Failure], outcome: Outcome) -> Failure | None:
    """Return the first failure whose signature `outcome` shows."""
    return next((failure for failure in failures if matched(failure, outcome)), None)


def shows(outcome: Outcome, signature: Signature) -> bool:
    """Return whether every key of the signature holds; exception, message and frames must hold in one exception."""
    if signature.signal is not None and signature.signal not in died_of(outcome):
        return False
    if signature.stack is not None and not _crashed_in(outcome, signature.stack, signature.signal):
        return False
    if signature.exit_code is not None and outcome.exit_code != signature.exit_code:
        return False
    if signature.log is not None and not re.search(signature.log, outcome.evidence):
        return False
    if signature.exception is None and signature.message is None and not signature.place:
        return True
    return any(_is(raised, signature) for raised in outcome.chain)


def died_of(outcome: Outcome) -> set[str | None]:
    """Return the signal that ended the run, from the supervisor; of a launcher that exited, those in its log."""
    if outcome.signal is None and outcome.kind is OutcomeKind.EXITED:
        return {crash.signal for crash in crashes(outcome.evidence)}
    return {outcome.signal}


def _crashed_in(outcome: Outcome, function: str, signal: str | None) -> bool:
    return any(crash.has_frame(function) and signal in (None, crash.signal) for crash in crashes(outcome.evidence))


def _is(raised: Raised, signature: Signature) -> bool:
    if signature.exception is not None and raised.type != signature.exception:
        return False
    if signature.message is not None and not re.search(signature.message, raised.compared):
        return False
    if signature.frame is not None and not any(is_at(frame, signature.frame) for frame in raised.frames[-1:]):
        return False
    return signature.through is None or any(is_at(frame, signature.through) for frame in raised.frames)


def is_at(frame: Frame, place: str) -> bool:
    """Return whether a frame is at "file.py:function"; the file is the end of a path."""
    file, _, function = place.rpartition(":")
    return frame.function == function and f"/{frame.file}".endswith(f"/{file}")
