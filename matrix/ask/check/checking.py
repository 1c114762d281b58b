"""Check a stack and its jobs against the catalog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING

from matrix.ask.check.answer import CheckResult, unknown_parts
from matrix.ask.check.calls import breaking_calls
from matrix.ask.check.declaring import CheckInput
from matrix.ask.check.examine import Assumed, examine
from matrix.ask.check.remedies import Breaks, breaks_of, broken, upgrades, with_remedies
from matrix.ask.check.rulings import (
    KNOWN_BREAK,
    FailureInStack,
    PreflightResult,
    Rulings,
    apply_preflights,
    clashes,
    judge_failure,
    ordered,
)
from matrix.ask.check.training_job import NO_JOB, UserJob
from matrix.ask.check.transition import Effect, Transition
from matrix.ask.check.user_stack import UserStack, unrecorded
from matrix.ground.cases.machine_requirements import fit_of
from matrix.ground.catalog.loading import evidence_of, night_of
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.reach import Reach, Reached
from matrix.ground.catalog.stack import WRITER_MCORE, Stack
from matrix.kit import launch
from matrix.kit.preflight import FILE

if TYPE_CHECKING:  # not needed for every answer: 0.1 s
    from matrix.ask.check.checkpoint_settings import Checkpoint
    from matrix.ask.check.job_site import JobSite
    from matrix.ground.verdicts.trend import PastResult


@dataclass(frozen=True)
class Question:
    """What is checked besides the stack: jobs, the machine (None: unknown), options, axes to upgrade, a checkpoint.

    `required` are the components that the stack must name. `here`: the stack is this environment, so that a case runs
    in it with `megatrix run --here`.
    """

    jobs: tuple[UserJob, ...] = ()
    host: JobSite | None = None
    assumed: Assumed = field(default_factory=Assumed)
    upgrades: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = None
    here: bool = False
    required: tuple[str, ...] = ()


def check(
    catalog: Catalog, stack: UserStack, question: Question, runs: Mapping[str, tuple[PastResult, ...]]
) -> CheckResult:
    """Return how every failure of the catalog stands in the stack; `runs` are those of this machine's history."""
    if question.checkpoint and question.checkpoint.mark:
        stack = replace(stack, limits={**stack.limits, WRITER_MCORE: question.checkpoint.mark.wrote.text})
    rulings = judge(catalog, stack, question)
    broken_in = cache(lambda other: broken(catalog, other, question.jobs))

    def explained(one: FailureInStack) -> FailureInStack:
        one = replace(one, runs=runs.get(one.failure.id, ()))
        if one.standing not in KNOWN_BREAK:  # without workarounds and a proof
            return one
        one = replace(one, evidence=evidence_of(night_of(one.failure)))
        return with_remedies(catalog, stack, one, broken_in, here=question.here)

    def breaks(other: Stack) -> Breaks:
        user = replace(stack, stack=other)
        return breaks_of(judge(catalog, user, replace(question, checkpoint=None)), fit_of(catalog, other))

    return CheckResult(
        stack,
        question.jobs,
        ordered(map(explained, rulings.failures)),
        tuple(rulings.clashes),
        tuple(rulings.calls),
        rulings.problems,
        unknown_parts(catalog, stack, rulings, question.required, question.jobs),
        tuple(upgrades(catalog, stack.stack, component, breaks) for component in question.upgrades),
        question.host,
        question.checkpoint,
    )


def check_input(
    catalog: Catalog, checked: CheckInput, question: Question, runs: Mapping[str, tuple[PastResult, ...]]
) -> CheckResult:
    """Return the answer for one of several stacks, with its own jobs and machine."""
    own = replace(question, jobs=checked.jobs, host=checked.host)
    return replace(check(catalog, checked.stack, own, runs), files=checked.files, loading=checked.loading)


def judge(catalog: Catalog, stack: UserStack, question: Question) -> Rulings:
    """Return what the catalog rules of a stack and its jobs."""
    unknown = unrecorded(catalog, stack.stack)
    by_rules = [judge_failure(catalog, stack, failure, question.jobs, unknown) for failure in catalog.failures]
    failures = apply_preflights(by_rules, _judgements(catalog, stack, question))
    calls, problems = breaking_calls(catalog, stack.stack, question.jobs)
    return Rulings(failures, calls, problems, clashes(catalog, stack, question.checkpoint))


def _judgements(catalog: Catalog, stack: UserStack, question: Question) -> dict[str, PreflightResult]:
    """Return the report of each preflight whose failure a job may reach: of the job that it judges most certainly."""
    found: dict[str, PreflightResult] = {}
    for failure in catalog.failures:
        if not (failure.folder / FILE).is_file():
            continue
        for job in question.jobs or (NO_JOB,):
            reached = failure.reach(stack.stack, job.arguments)
            own = {option.name for option in failure.preflight.option if option.default is None and not option.machine}
            asked = own & question.assumed.given.keys()
            described = job.arguments is not None or _launched(question)
            if not asked and (not described or reached.reach in (Reach.MISSING, Reach.AVOIDED)):
                continue
            if asked and job.arguments is None:  # the user's options are the arguments of the job
                reached = Reached(by=tuple(f"--{name} {question.assumed.given[name]}" for name in sorted(asked)))
            report = examine(failure, stack.stack, job, question.host, question.assumed, catalog.failures)
            if report.judged and (failure.id not in found or report.fails):
                found[failure.id] = PreflightResult(report, reached, job)
    return found


def _launched(question: Question) -> bool:
    """Return whether something besides a command describes a job: an option, or the launcher of this process."""
    world = launch.world_of(question.host.environ) if question.host else launch.UNKNOWN
    return world.size is not None or bool(question.assumed.general.keys() & {"launcher", "world-size"})


def certain_changes(catalog: Catalog, old: Stack, new: Stack) -> list[str]:
    """Return what is known to break or to be fixed between two stacks, without a run."""
    results = [check(catalog, UserStack(stack), Question(), {}) for stack in (old, new)]
    parts = [part for part in Transition(results[0], results[1]).parts if part.effect in (Effect.NEW, Effect.FIXED)]
    return [f"known, {part.effect.value}: {part.name}: {part.title}" for part in parts if part.certain]
