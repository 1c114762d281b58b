"""A case at level contract: both APIs are read, and no upstream code runs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from matrix.ground.catalog.failure import Case, ContractCall, Failure
from matrix.ground.catalog.machine import Machine
from matrix.ground.catalog.reach import read_options
from matrix.ground.catalog.stack import MCORE, TE, Cell
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind, Raised
from matrix.kit.launch import Launcher, environment_of, world_of
from matrix.kit.preflight import TrainingJob, preflight_of

if TYPE_CHECKING:
    from matrix.read.api.finding import Finding

# The findings that count as this failure. A call that fails outright is not misbound: another failure, and no pass.
BREAKS: Final = {"definite": ("definite",), "misbound": ("misbound", "definite")}


def read_case(failure: Failure, case: Case, cell: Cell) -> Outcome:
    """Return the outcome of the failure's call in a cell, or of its preflight.py if the failure names no call.

    Raises MatrixError for a release that is not recorded.
    """
    from matrix.read.api import sides  # 0.1 s: `check` does not need it

    if failure.contract:
        return outcome_of(failure.contract, sides.findings(str(cell.stack[MCORE]), str(cell.stack[TE])))
    return preflight_outcome(failure, case, cell)


def outcome_of(call: ContractCall, found: Iterable[Finding]) -> Outcome:
    """Return RAISED if a finding breaks the callee in the way that `call` describes, else PASSED.

    Python raises nothing for an argument that lands on the wrong parameter; the outcome then holds a Misbound. The
    reason of a pass lists the other findings of the callee. A break that raises before it is a part of its chain.
    """
    findings = list(found)
    of_callee = [
        finding
        for finding in findings
        if re.search(call.callee, finding.callee) and re.search(call.caller or "", finding.call_site.function)
    ]
    breaks = [finding for finding in of_callee if finding.kind.value in BREAKS[call.kind]]
    if breaks:
        masks = " ".join(finding.masked for finding in breaks)
        earlier = [finding for finding in findings if f"{finding.call_site} raises before" in masks]
        chain = tuple(Raised(finding.error, finding.message) for finding in (*breaks, *earlier))
        return Outcome(OutcomeKind.RAISED, _render(breaks[0]), chain=chain)
    return Outcome(OutcomeKind.PASSED, "; ".join(map(_render, of_callee)))


def _render(finding: Finding) -> str:
    return f"{finding.kind.value} at {finding.call_site}: {finding.message}"


def preflight_outcome(failure: Failure, case: Case, cell: Cell) -> Outcome:
    """Return the outcome of a case by the preflight of its failure, for a PyTorch with its mpi backend.

    An outcome `raised` has the first error of the answers. Raises MatrixError for a release that is not recorded, and
    for an argument of the case that is no option of the preflight.
    """
    from matrix.kit import contracts

    arguments, machine = read_options(failure.preflight.option, case.arguments)
    world = world_of(environment_of(Launcher(case.launcher), case.ranks))
    core, engine = (cell.stack.version(name) or "" for name in (MCORE, TE))
    job = TrainingJob(engine, core, torch_mpi=True, world=world, arguments=arguments)
    report = preflight_of(failure.folder)(job, Machine(**machine), contracts)
    reason = report.answers[0].reason
    if not report.judged:
        return Outcome(OutcomeKind.UNAVAILABLE, reason)
    error = next((answer.error for answer in report.answers if answer.error), None)
    if error is None:
        return Outcome(OutcomeKind.PASSED, reason)
    # The type of an effect, such as a crash, is no exception class and is left out.
    reason = error.message if error.effect else str(error)
    return Outcome(OutcomeKind.RAISED, reason, chain=(Raised(error.type, error.message),))
