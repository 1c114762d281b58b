"""The calls from a stack's megatron-core into its Transformer Engine and torch that break and the catalog lacks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from matrix.catalog.cell import Clause
from matrix.catalog.failure import Expectation, Failure
from matrix.catalog.model import Catalog
from matrix.catalog.reach import JobArguments, Reach, Reached, reached
from matrix.catalog.stack import BASE, MCORE, TE, TORCH, UNKNOWN, Stack, component_title
from matrix.check.answer import ORDER, BreakingCalls, Standing, reaching, standing_of
from matrix.check.training_job import UserJob
from matrix.errors import MatrixError
from matrix.verdicts.outcome import Outcome, OutcomeKind
from matrix.verdicts.signature_match import matched

if TYPE_CHECKING:  # not needed for a stack without both packages: 0.1 s
    from matrix.contract.finding import Finding
    from matrix.contract.relevance import FunctionReach


# The calls that break, by what reaches them, and by package why calls into it can't be judged.
CallsAnswer = tuple[tuple[BreakingCalls, ...], Mapping[str, str]]
PROVIDED: Final = (TE, TORCH)


def breaking_calls(catalog: Catalog, stack: Stack, jobs: Sequence[UserJob]) -> CallsAnswer:
    """Return the calls into every package whose API is recorded."""
    return joined(calls_into(package, catalog, stack, jobs) for package in PROVIDED)


def joined(answers: Iterable[CallsAnswer]) -> CallsAnswer:
    """Return the answers for several packages as one, the most certain calls first."""
    parts = list(answers)
    calls = (call for part, _ in parts for call in part)
    problems = {package: problem for _, part in parts for package, problem in part.items()}
    return tuple(sorted(calls, key=lambda call: (ORDER.index(call.standing), not call.certain))), problems


def calls_into(package: str, catalog: Catalog, stack: Stack, jobs: Sequence[UserJob]) -> CallsAnswer:
    """Return the calls into one package, TE or torch."""
    core, version = stack.version(MCORE), stack.version(package)
    if core and stack[package] is UNKNOWN and package == TORCH and stack.version(BASE):
        return (), {TORCH: f"level contract can't judge calls into torch: that of {stack[BASE]} is not known"}
    if not (core and version):
        return (), {}
    from matrix.contract import pairs
    from matrix.contract.relevance import relevance

    try:
        findings, differing = pairs.breaking_or_near(core, version, package)
    except MatrixError as error:
        return (), {package: f"level contract can't judge calls into {component_title(package)}: {error.brief}"}
    problems = {}
    if unclear := _unowned(package, catalog, stack, differing, (Expectation.BROKEN, Expectation.WORKS)):
        callees = ", ".join(dict.fromkeys(finding.callee for finding in unclear))
        problems[package] = f"the releases before and after {component_title(package)} {version} differ in {callees}"
    alike: dict[BreakingCalls, tuple[Finding, ...]] = {}
    for finding in _unowned(package, catalog, stack, findings):
        ways = [way for way in relevance().reached_by if way.covers(finding.call_site) and way.matches(stack)]
        job, way = reaching(jobs, partial(_reached, finding, ways))
        stands = standing_of(way, silent=not finding.exception)
        flags = tuple(f"add {flag}" for flag in way.switches)
        needs = way.needs or ("" if finding.call_site.function else f"when {component_title(MCORE)} is imported")
        key = BreakingCalls((), stands, way.certain, way.reach is Reach.MISSING, needs, flags, job.place)
        alike[key] = (*alike.get(key, ()), finding)
    return tuple(
        replace(calls, findings=same) for calls, same in alike.items() if calls.standing is not Standing.NOT_REACHED
    ), problems


def deciding(package: str, catalog: Catalog) -> list[Clause]:
    """Return the clauses that decide how calls into a package stand, besides the two versions."""
    from matrix.contract.relevance import relevance

    stated = [rule for entry in _owners(package, catalog) for rule in (*entry.affected, *entry.works)]
    return [*stated, *relevance().reached_by]


def _owners(package: str, catalog: Catalog) -> list[Failure]:
    """Return the failures that calls into a package can be: at level contract those into TE are read alone."""
    return [entry for entry in catalog.failures if (entry.contract if package == TE else entry.callees)]


def _unowned(
    package: str,
    catalog: Catalog,
    stack: Stack,
    found: Sequence[Finding],
    judged: tuple[Expectation, ...] = (Expectation.BROKEN,),
) -> list[Finding]:
    """Return the findings without those of a failure with such an expectation in the stack, and others of its lines."""
    entries = _owners(package, catalog)

    def stated(finding: Finding) -> bool:
        outcome = Outcome(OutcomeKind.RAISED, chain=(finding.raised,))
        return any(
            (any(re.search(callee, finding.callee) for callee in entry.callees) or matched(entry, outcome))
            and entry.expectation(stack) in judged
            for entry in entries
        )

    known = {(one.callee, one.call_site) for one in found if stated(one)}
    return [one for one in found if (one.callee, one.call_site) not in known]


def _reached(finding: Finding, ways: Sequence[FunctionReach], arguments: JobArguments | None) -> Reached:
    """Return whether a command reaches the line by one of the ways; without any, its guard decides."""
    if ways:
        return reached(ways, lambda way: True, arguments)
    return Reached(Reach.OPEN, when=finding.guard or f"{finding.call_site.function} runs")
