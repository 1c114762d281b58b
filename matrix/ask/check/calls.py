"""The calls from a stack's packages into one another that break and the catalog lacks: of CALL_PAIRS, BRIDGE_PAIRS."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from matrix.ask.check.rulings import ORDER, BreakingCalls, Standing, reaching, standing_of
from matrix.ask.check.training_job import UserJob
from matrix.ground.catalog.failure import Expectation, Failure
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.reach import JobArguments, Reach, Reached, reached
from matrix.ground.catalog.stack import (
    BASE,
    BRIDGE_PAIRS,
    CALL_PAIRS,
    TORCH,
    UNKNOWN,
    CallPair,
    Clause,
    Stack,
    component_title,
)
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind, Raised
from matrix.ground.verdicts.signature_match import matched

if TYPE_CHECKING:  # not needed for a stack without both packages: 0.1 s
    from matrix.read.api.finding import Finding
    from matrix.read.api.relevance import FunctionReach


# The calls that break, by what reaches them, and by package why calls into it can't be judged.
CallsAnswer = tuple[tuple[BreakingCalls, ...], Mapping[str, str]]


def breaking_calls(catalog: Catalog, stack: Stack, jobs: Sequence[UserJob]) -> CallsAnswer:
    """Return the calls of every pair of packages."""
    return joined(calls_of(pair, catalog, stack, jobs) for pair in (*CALL_PAIRS, *BRIDGE_PAIRS))


def joined(answers: Iterable[CallsAnswer]) -> CallsAnswer:
    """Return the answers for several pairs as one, the most certain calls first."""
    parts = list(answers)
    calls = (call for part, _ in parts for call in part)
    problems: dict[str, str] = {}
    for package, problem in (item for _, part in parts for item in part.items()):
        problems[package] = "; ".join(dict.fromkeys(filter(None, (problems.get(package), problem))))
    return tuple(sorted(calls, key=lambda call: (ORDER.index(call.standing), not call.certain))), problems


def calls_of(pair: CallPair, catalog: Catalog, stack: Stack, jobs: Sequence[UserJob]) -> CallsAnswer:
    """Return the calls of one package into another."""
    package, into = pair.provider, f"into {component_title(pair.provider)}"
    consumer, version = stack.version(pair.consumer), stack.version(package)
    if consumer and stack[package] is UNKNOWN and package == TORCH and stack.version(BASE):
        return (), {package: f"level contract can't judge calls {into}: that of {stack[BASE]} is not known"}
    if not (consumer and version):
        return (), {}
    from matrix.read.api import pairs
    from matrix.read.api.relevance import relevance

    try:
        findings, differing = pairs.breaking_or_near(pair, consumer, version)
    except MatrixError as error:
        return (), {package: f"level contract can't judge calls {into}: {error.brief}"}
    problems = {}
    if unclear := _unowned(pair, catalog, stack, differing, (Expectation.BROKEN, Expectation.WORKS)):
        callees = ", ".join(dict.fromkeys(finding.callee for finding in unclear))
        problems[package] = f"the releases before and after {component_title(package)} {version} differ in {callees}"
    alike: dict[BreakingCalls, tuple[Finding, ...]] = {}
    for finding in _unowned(pair, catalog, stack, findings):
        ways = [way for way in relevance().reached_by if way.covers(finding) and way.matches(stack)]
        job, way = reaching(jobs, partial(_reached, finding, ways))
        stands = standing_of(way, silent=not finding.exception)
        flags = tuple(f"add {flag}" for flag in way.switches)
        needs = way.needs or ("" if finding.line.function else f"when {component_title(pair.consumer)} is imported")
        key = BreakingCalls((), stands, way.certain, way.reach is Reach.MISSING, needs, flags, job.place)
        alike[key] = (*alike.get(key, ()), finding)
    return tuple(
        replace(calls, findings=same) for calls, same in alike.items() if calls.standing is not Standing.NOT_REACHED
    ), problems


def deciding(pair: CallPair, catalog: Catalog) -> list[Clause]:
    """Return the clauses that decide how the calls of a pair stand, besides the two versions."""
    from matrix.read.api.relevance import relevance

    stated = [rule for entry in _owners(pair, catalog) for rule in (*entry.affected, *entry.works)]
    return [*stated, *(way for way in relevance().reached_by if way.package == pair.consumer)]


def _owners(pair: CallPair, catalog: Catalog) -> list[Failure]:
    """Return the failures that calls of a pair can be: a call of theirs is read, and their rules bound both sides."""
    entries = [entry for entry in catalog.failures if entry.contract or entry.callees]
    sides = {pair.consumer, pair.provider}
    return [entry for entry in entries if any(sides <= rule.bounds.keys() for rule in entry.affected)]


def _unowned(
    pair: CallPair,
    catalog: Catalog,
    stack: Stack,
    found: Sequence[Finding],
    judged: tuple[Expectation, ...] = (Expectation.BROKEN,),
) -> list[Finding]:
    """Return the findings without those of a failure with such an expectation in the stack, and others of its lines."""
    entries = _owners(pair, catalog)

    def stated(finding: Finding) -> bool:
        outcome = Outcome(OutcomeKind.RAISED, chain=(Raised(finding.error, finding.message),))
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
        return reached(ways, lambda way: (), arguments)
    if finding.packages in [pair[:2] for pair in BRIDGE_PAIRS]:
        return Reached(Reach.OPEN, when=f"the job reaches these lines of {component_title(finding.packages[0])}")
    return Reached(Reach.OPEN, when=finding.guard or f"{finding.line.function} runs")
