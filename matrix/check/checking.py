"""Check a stack and its jobs against the catalog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from matrix.catalog.model import Catalog
from matrix.catalog.reach import Reach, Reached
from matrix.catalog.stack import WRITER_MCORE
from matrix.check.answer import (
    CheckResult,
    FailureInStack,
    PreflightResult,
    StackChange,
    Standing,
    clashes,
    judged,
    ordered,
    stand,
)
from matrix.check.calls import breaking_calls
from matrix.check.examine import Assumed, examine
from matrix.check.remedies import proof, upgrade, version_changes
from matrix.check.training_job import NO_JOB, UserJob
from matrix.check.user_stack import UserStack, unrecorded
from matrix.kit.launch import UNKNOWN, world_of
from matrix.kit.preflight import FILE

if TYPE_CHECKING:  # not needed for every answer: 0.1 s
    from matrix.check.checkpoint_settings import Checkpoint
    from matrix.check.job_site import JobSite
    from matrix.store.trend import PastResult

EXPLAINED: Final = (Standing.WILL_BREAK, Standing.WITH_OPTIONS, Standing.SILENT)  # with workarounds and a proof


@dataclass(frozen=True)
class Question:
    """What is checked besides the stack: jobs, the machine (None: unknown), options, axes to upgrade, a checkpoint.

    `here`: the stack is this environment, so that a case runs in it with `megatrix run --here`.
    """

    jobs: tuple[UserJob, ...] = ()
    host: JobSite | None = None
    assumed: Assumed = field(default_factory=Assumed)
    upgrades: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = None
    here: bool = False


def check(
    catalog: Catalog, stack: UserStack, question: Question, runs: Mapping[str, tuple[PastResult, ...]]
) -> CheckResult:
    """Return how every failure of the catalog stands in the stack; `runs` are those of this machine's history."""
    if question.checkpoint and question.checkpoint.mark:
        stack = replace(stack, limits={**stack.limits, WRITER_MCORE: question.checkpoint.mark.wrote.text})
    unknown = unrecorded(catalog, stack.stack)
    jobs = question.jobs
    found = [stand(catalog, stack, failure, jobs, unknown) for failure in catalog.failures]
    found = judged(found, _judgements(catalog, stack, question))
    explained = [_explained(catalog, stack, one, question, runs) for one in found]
    calls, problem = breaking_calls(catalog, stack.stack, jobs)
    upgrades = tuple(upgrade(catalog, stack, axis, jobs) for axis in question.upgrades)
    return CheckResult(
        stack,
        jobs,
        ordered(explained),
        tuple(clashes(catalog, stack, question.checkpoint)),
        calls,
        problem,
        upgrades,
        question.host,
        question.checkpoint,
    )


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
    world = world_of(question.host.environ) if question.host else UNKNOWN
    return world.size is not None or bool(question.assumed.general.keys() & {"launcher", "world-size"})


def _explained(
    catalog: Catalog,
    stack: UserStack,
    one: FailureInStack,
    question: Question,
    runs: Mapping[str, tuple[PastResult, ...]],
) -> FailureInStack:
    one = replace(one, runs=runs.get(one.failure.id, ()))
    if one.standing not in EXPLAINED:
        return one
    texts = [StackChange("text", each.text, each.verified) for each in one.failure.workarounds]
    known = " ".join(each.text for each in texts)
    versions = list(version_changes(catalog, stack, one.failure, question.jobs))
    job = [
        each
        for each in one.workarounds
        if not (each.kind == "flag" and each.text.removeprefix("add ") in known)
        and not any(other.text.startswith(f"{each.text} ") for other in versions)
    ]
    here = f'megatrix run --here --select "failure=={one.failure.id}"'
    return replace(
        one,
        workarounds=(*job, *versions, *texts),
        prove=here if question.here and one.failure.case else proof(catalog, one.failure, stack.stack),
    )
