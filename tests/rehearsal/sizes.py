"""The sizes of a rehearsal: those that its case gives for it."""

from __future__ import annotations

from dataclasses import replace

from matrix.ground.catalog.failure import NO_LIMITS, Case


def small(case: Case) -> Case:
    """Return a case with the sizes of its rehearsal, and without limits: those of its memory go with its sizes."""
    return replace(case, arguments={**case.arguments, **case.rehearsal}, limits=NO_LIMITS)
