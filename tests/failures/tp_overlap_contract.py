"""Level contract: what the overlap contract says of a Megatron-LM, a Transformer Engine, a launcher and a backend."""

from __future__ import annotations

from matrix.catalog.cell import Cell
from matrix.check.launch import Launcher, environment_of
from matrix.check.overlap import Setting, contract
from matrix.verdicts.outcome import Outcome, OutcomeKind, Raised

RANKS = 2  # any number but 1 is the same failure
DEFAULT = "default"  # the backend of a job that names none


def outcome_of(cell: Cell, case: str) -> Outcome:
    """Return how far userbuffers come in a case, "LAUNCHER-BACKEND", with a PyTorch that has its mpi backend.

    Raised is the first thing that breaks: MpiWorldTooSmall stands for the crash of the process that makes the group.
    Raises MatrixError for a release that is not recorded.
    """
    launcher, _, backend = case.partition("-")
    job = Setting(
        cell.te,
        cell.mcore,
        None if backend == DEFAULT else backend,
        torch_mpi=True,
        environ=environment_of(Launcher(launcher), RANKS),
    )
    answers = contract(job)
    for answer in answers:
        if answer.failure == "tp-overlap":
            message = f"{answers[0].reason}; {answer.reason}"
            return Outcome(OutcomeKind.RAISED, message, chain=(Raised("MpiWorldTooSmall", message),))
        if answer.breaks:
            kind, _, message = answer.breaks.partition(": ")
            return Outcome(OutcomeKind.RAISED, answer.breaks, chain=(Raised(kind, message),))
    return Outcome(OutcomeKind.PASSED, answers[0].reason)
