"""Preflight of --tp-comm-overlap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from matrix.kit.options import Option, one_of
from matrix.kit.preflight import Contracts, Machine, Preflight, Report, Status, TrainingJob, unjudged

from .launch import WORLD
from .multicast import VARIABLE
from .overlap import BACKENDS, BOOTSTRAP, GROUP, contract
from .remedy import remedies

SUBJECT: Final = "--tp-comm-overlap"


def examine(job: TrainingJob, machine: Machine, contracts: Contracts) -> Report:
    """Return whether the job starts, and the changes it needs. Raises MatrixError for an unrecorded release."""
    if not job.te:
        return unjudged(SUBJECT, "the stack names no Transformer Engine")

    def starts(changed: TrainingJob) -> bool:
        return not any(answer.error for answer in contract(changed, machine, contracts))

    answers = contract(job, machine, contracts)
    group, *_, world = (one for one in answers if one.question in (GROUP, WORLD))
    return Report(
        SUBJECT,
        answers,
        () if starts(job) else remedies(job, starts, contracts.released),
        clears=Status.NO is group.status or Status.YES is world.status,
        open=world.reason if Status.UNKNOWN is world.status else "",
    )


def given(values: Mapping[str, str], _: int | None) -> Mapping[str, str]:
    """Return the options that a command states."""
    backend = values.get("tp-comm-bootstrap-backend")
    return {BOOTSTRAP: backend} if backend else {}


PREFLIGHT: Final = Preflight(
    SUBJECT,
    examine,
    options=(Option(BOOTSTRAP, "BACKEND", f"--tp-comm-bootstrap-backend: {', '.join(BACKENDS)}", one_of(*BACKENDS)),),
    given=given,
    variables=(VARIABLE,),
)
