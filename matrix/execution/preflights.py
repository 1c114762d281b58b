"""Find the preflights in the folders of failures, and run one for a case at level contract."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from matrix.catalog.cell import Cell
from matrix.catalog.folders import load_module, roots
from matrix.errors import MatrixError
from matrix.kit import options
from matrix.kit.launch import Launcher, environment_of, world_of
from matrix.kit.preflight import Contracts, Machine, Preflight, TrainingJob, unjudged
from matrix.verdicts.outcome import Outcome, OutcomeKind, Raised

FILE: Final = "preflight.py"


def installed(*folders: Path) -> tuple[Preflight, ...]:
    """Return the preflights of all failures that have one, by folder; a broken one becomes one that reports that."""
    return tuple(found(path.parent) for root in folders or roots() for path in sorted(root.glob(f"*/{FILE}")))


def found(folder: Path) -> Preflight:
    """Return the preflight of a failure's folder; a broken one becomes one that reports that."""
    try:
        return preflight_of(folder)
    except Exception as error:  # whatever the module of one entry raises
        subject, reason = folder.name, f"{folder / FILE} fails: {type(error).__name__}: {error}"
        return Preflight(subject, lambda job, machine, contracts: unjudged(subject, reason))


def preflight_of(folder: Path) -> Preflight:
    """Return the preflight of a failure's folder. Raises MatrixError."""
    found = getattr(load_module(folder, "preflight"), "PREFLIGHT", None)
    if not isinstance(found, Preflight):
        raise MatrixError(
            "no preflight in this module", where=str(folder / FILE), got=found, expected="PREFLIGHT = Preflight(...)"
        )
    return found


def preflight_outcome(
    folder: Path, cell: Cell, launcher: str, ranks: int, arguments: Mapping[str, str], contracts: Contracts
) -> Outcome:
    """Return the outcome of a case by the preflight in `folder`, for a PyTorch with its mpi backend.

    `arguments` are values of the preflight's options. An outcome `raised` has the first error of the answers. Raises
    MatrixError for a release that is not recorded.
    """
    preflight = preflight_of(folder)
    given, machine = options.read(preflight.options, arguments)
    world = world_of(environment_of(Launcher(launcher), ranks))
    job = TrainingJob(cell.te, cell.mcore, torch_mpi=True, world=world, arguments=given)
    report = preflight.examine(job, Machine(**machine), contracts)
    first = report.answers[0]
    if not report.judged:
        return Outcome(OutcomeKind.UNAVAILABLE, first.reason)
    error = next((answer.error for answer in report.answers if answer.error), None)
    if error is None:
        return Outcome(OutcomeKind.PASSED, first.reason)
    # The type of an effect, such as a crash, is no exception class and is left out.
    reason = error.message if error.effect else str(error)
    return Outcome(OutcomeKind.RAISED, reason, chain=(Raised(error.type, error.message),))
