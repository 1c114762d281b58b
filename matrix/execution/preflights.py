"""Cases at level contract, which are read: both APIs, or the preflight.py of the failure. No upstream code runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from matrix.catalog.cell import Cell
from matrix.catalog.failure import Case, Failure
from matrix.catalog.folders import load_module, roots
from matrix.catalog.stack import MCORE, TE
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
    preflight = getattr(load_module(folder, "preflight"), "PREFLIGHT", None)
    if not isinstance(preflight, Preflight):
        where, expected = str(folder / FILE), "PREFLIGHT = Preflight(...)"
        raise MatrixError("no preflight in this module", where=where, got=preflight, expected=expected)
    return preflight


def preflight_outcome(
    folder: Path, cell: Cell, launcher: str, ranks: int, arguments: Mapping[str, str], contracts: Contracts
) -> Outcome:
    """Return the outcome of a case by the preflight in `folder`, for a PyTorch with its mpi backend.

    `arguments` are values of the preflight's options. An outcome `raised` has the first error of the answers. Raises
    MatrixError for a release that is not recorded.
    """
    preflight = preflight_of(folder)
    values, machine = options.read(preflight.options, arguments)
    world = world_of(environment_of(Launcher(launcher), ranks))
    job = TrainingJob(
        cell.stack.version(TE) or "", cell.stack.version(MCORE) or "", torch_mpi=True, world=world, arguments=values
    )
    report = preflight.examine(job, Machine(**machine), contracts)
    reason = report.answers[0].reason
    if not report.judged:
        return Outcome(OutcomeKind.UNAVAILABLE, reason)
    error = next((result.error for result in report.answers if result.error), None)
    if error is None:
        return Outcome(OutcomeKind.PASSED, reason)
    # The type of an effect, such as a crash, is no exception class and is left out.
    reason = error.message if error.effect else str(error)
    return Outcome(OutcomeKind.RAISED, reason, chain=(Raised(error.type, error.message),))


def read_case(failure: Failure, case: Case, cell: Cell) -> Outcome:
    """Return the outcome of the failure's call in a cell, or of its preflight.py if the failure names no call.

    Raises MatrixError for a release that is not recorded.
    """
    from matrix.contract import calling, reading  # 0.1 s: `check` does not need it

    if failure.contract:
        core, engine = (str(cell.stack[name]) for name in (MCORE, TE))
        return calling.outcome_of(failure.contract, reading.calls_of(core), reading.surface_of(engine))
    return preflight_outcome(failure.folder, cell, case.launcher, case.ranks, case.arguments, calling)
