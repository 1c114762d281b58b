"""Preflight of --tp-comm-overlap."""

from __future__ import annotations

from typing import Final

from matrix.kit.options import Option, one_of
from matrix.kit.preflight import Contracts, Machine, Preflight, Report, TrainingJob, unjudged

from .multicast import VARIABLE
from .overlap import BACKENDS, BOOTSTRAP, contract
from .remedy import remedies

SUBJECT: Final = "--tp-comm-overlap"


def examine(job: TrainingJob, machine: Machine, contracts: Contracts) -> Report:
    """Return whether the job starts, and the changes it needs. Raises MatrixError for an unrecorded release."""
    if not job.te:
        return unjudged(SUBJECT, "there is no Transformer Engine here; name one with --te")

    def starts(changed: TrainingJob) -> bool:
        return not any(answer.error for answer in contract(changed, machine, contracts))

    answers = contract(job, machine, contracts)
    return Report(SUBJECT, answers, () if starts(job) else remedies(job, starts, contracts.released))


PREFLIGHT: Final = Preflight(
    SUBJECT,
    examine,
    options=(Option(BOOTSTRAP, "BACKEND", f"--tp-comm-bootstrap-backend: {', '.join(BACKENDS)}", one_of(*BACKENDS)),),
    variables=(VARIABLE,),
)
