"""Preflight of --tp-comm-overlap."""

from __future__ import annotations

from matrix.kit.preflight import Contracts, Machine, Report, Status, TrainingJob, unjudged

from .launch import WORLD
from .overlap import GROUP, contract
from .remedy import remedies


def examine(job: TrainingJob, machine: Machine, contracts: Contracts) -> Report:
    """Return whether the job starts, and the changes it needs. Raises MatrixError for an unrecorded release."""
    if not job.te:
        return unjudged("the stack names no Transformer Engine")

    def starts(changed: TrainingJob) -> bool:
        return not any(answer.error for answer in contract(changed, machine, contracts))

    answers = contract(job, machine, contracts)
    group, *_, world = (answer for answer in answers if answer.question in (GROUP, WORLD))
    return Report(
        answers,
        () if starts(job) else remedies(job, starts, contracts.released),
        clears=Status.NO is group.status or Status.YES is world.status,
        open=world.reason if Status.UNKNOWN is world.status else "",
    )
