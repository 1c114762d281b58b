"""The calls from a stack's megatron-core into its Transformer Engine that break, as far as the catalog lacks them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from matrix.catalog.cell import Clause
from matrix.catalog.failure import Expectation
from matrix.catalog.model import Catalog
from matrix.catalog.reach import JobArguments, Reach, Reached, reached
from matrix.catalog.stack import MCORE, TE, Stack
from matrix.check.answer import ORDER, BreakingCalls, Standing, reaching, standing_of
from matrix.check.training_job import UserJob
from matrix.errors import MatrixError
from matrix.verdicts.outcome import Outcome, OutcomeKind
from matrix.verdicts.signature_match import matched

if TYPE_CHECKING:  # not needed for a stack without both packages: 0.1 s
    from matrix.contract.finding import Finding
    from matrix.contract.relevance import FunctionReach


def breaking_calls(catalog: Catalog, stack: Stack, jobs: Sequence[UserJob]) -> tuple[tuple[BreakingCalls, ...], str]:
    """Return the calls by what reaches them, the most certain first, and why a side can't be judged ("": it can)."""
    core, engine = stack.version(MCORE), stack.version(TE)
    if not (core and engine):
        return (), ""
    from matrix.contract import pairs
    from matrix.contract.relevance import relevance

    try:
        found = pairs.breaking(core, engine)
    except MatrixError as error:
        return (), f"level contract can't judge this stack: {error.brief}"
    alike: dict[BreakingCalls, tuple[Finding, ...]] = {}
    for one in _unknown(catalog, stack, found):
        ways = [way for way in relevance().reached_by if one.call_site.function in way.functions and way.matches(stack)]
        job, way = reaching(jobs, partial(_reached, one, ways))
        stands = standing_of(way, silent=not one.exception)
        flags = tuple(f"add {flag}" for flag in way.switches)
        key = BreakingCalls((), stands, way.certain, way.reach is Reach.MISSING, way.needs, flags, job.place)
        alike[key] = (*alike.get(key, ()), one)
    kept = (replace(each, findings=same) for each, same in alike.items() if each.standing is not Standing.NOT_REACHED)
    return tuple(sorted(kept, key=lambda one: (ORDER.index(one.standing), not one.certain))), ""


def deciding(catalog: Catalog) -> list[Clause]:
    """Return the clauses that decide how calls stand, besides the two versions."""
    from matrix.contract.relevance import relevance

    stated = [rule for one in catalog.failures if one.contract for rule in (*one.affected, *one.works)]
    return [*stated, *relevance().reached_by]


def _unknown(catalog: Catalog, stack: Stack, found: Sequence[Finding]) -> list[Finding]:
    """Return the findings without those of a failure that is known to break in the stack, and others of its lines."""
    entries = [one for one in catalog.failures if one.contract]

    def stated(one: Finding) -> bool:
        outcome = Outcome(OutcomeKind.RAISED, chain=(one.raised,))
        return any(matched(each, outcome) and each.expectation(stack) is Expectation.BROKEN for each in entries)

    known = {(one.callee, one.call_site) for one in found if stated(one)}
    return [one for one in found if (one.callee, one.call_site) not in known]


def _reached(finding: Finding, ways: Sequence[FunctionReach], arguments: JobArguments | None) -> Reached:
    """Return whether a command reaches the line by one of the ways; without any, its guard decides."""
    if ways:
        return reached(ways, lambda way: True, arguments)
    return Reached(Reach.OPEN, when=finding.guard or f"{finding.call_site.function} runs")
