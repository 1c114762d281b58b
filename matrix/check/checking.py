"""Check a stack and its jobs against the catalog."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Final

from matrix.catalog.codec import decode
from matrix.catalog.failure import Failure
from matrix.catalog.model import Catalog
from matrix.catalog.reach import Reach, Reached
from matrix.catalog.schema import read_toml
from matrix.catalog.stack import BASE, UNKNOWN, WRITER_MCORE, Stack, component_title, short
from matrix.check.answer import (
    BreakingCalls,
    Breaks,
    CheckResult,
    FailureInStack,
    PreflightResult,
    StackChange,
    Standing,
    breaks_of,
    clashes,
    judged,
    ordered,
    stand,
    undecided_driver,
)
from matrix.check.calls import breaking_calls
from matrix.check.declaring import CheckInput
from matrix.check.examine import Assumed, examine
from matrix.check.files.declared import Unread, UnreadKind
from matrix.check.remedies import broken, proof, upgrades, version_changes
from matrix.check.training_job import NO_JOB, UserJob
from matrix.check.user_stack import COMMAND_LINE, RECORDED, UserStack, unrecorded
from matrix.kit import launch
from matrix.kit.preflight import FILE
from matrix.planning.driver_fit import fit_of

if TYPE_CHECKING:  # not needed for every answer: 0.1 s
    from matrix.check.checkpoint_settings import Checkpoint
    from matrix.check.job_site import JobSite
    from matrix.store.trend import PastResult

EXPLAINED: Final = (Standing.WILL_BREAK, Standing.WITH_OPTIONS, Standing.SILENT)  # with workarounds and a proof
NIGHT_FILE: Final = "night.toml"  # of a failure's folder, written by `megatrix catalog keep`


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


@dataclass(frozen=True)
class ProjectNight:
    """What the project's own night of a date reproduced of a failure: how often at each level."""

    date: str
    reproduced: Mapping[str, int]


def night_of(failure: Failure) -> ProjectNight | None:
    """Return the night.toml of a failure's folder, None without one."""
    path = failure.folder / NIGHT_FILE
    return decode(ProjectNight, read_toml(path), str(path)) if path.is_file() else None


def evidence_of(night: ProjectNight | None) -> str:
    """Return when and at which levels the project reproduced a failure, or that it was only read."""
    if night is None:
        return "read by the project; none of its recorded nights reproduces it"
    counts = night.reproduced.items()
    texts = [f"{count} time{'s' * (count != 1)} at level {level}" for level, count in counts]
    return f"reproduced {' and '.join(texts)} in the project's night of {night.date}"


def check(
    catalog: Catalog, stack: UserStack, question: Question, runs: Mapping[str, tuple[PastResult, ...]]
) -> CheckResult:
    """Return how every failure of the catalog stands in the stack; `runs` are those of this machine's history."""
    if question.checkpoint and question.checkpoint.mark:
        stack = replace(stack, limits={**stack.limits, WRITER_MCORE: question.checkpoint.mark.wrote.text})
    found, calls, problems = _judge(catalog, stack, question)
    broken_in = cache(lambda other: broken(catalog, other, question.jobs))
    explained = [_explained(catalog, stack, one, question, runs, broken_in) for one in found]
    undecided = (*_undecided(stack, found), *undecided_driver(catalog, stack))
    unread = (*stack.unread, *undecided, *_unnamed(stack, question.required))
    if not unread:
        places = {name: stack.place(name) or stack.place(BASE) or COMMAND_LINE for name in problems}
        unread = tuple(Unread(UnreadKind.VERSION, text, places[name]) for name, text in problems.items())

    def breaks(other: Stack) -> Breaks:
        user = replace(stack, stack=other)
        return breaks_of(*_judge(catalog, user, question), clashes(catalog, user), fit_of(catalog, other))

    return CheckResult(
        replace(stack, unread=unread),
        question.jobs,
        ordered(explained),
        tuple(clashes(catalog, stack, question.checkpoint)),
        calls,
        "; ".join(problems.values()),
        tuple(upgrades(catalog, stack.stack, component, breaks) for component in question.upgrades),
        question.host,
        question.checkpoint,
    )


def check_input(
    catalog: Catalog, checked: CheckInput, question: Question, runs: Mapping[str, tuple[PastResult, ...]]
) -> CheckResult:
    """Return the answer for one of several stacks, with its own jobs and machine."""
    own_question = replace(question, jobs=checked.jobs, host=checked.host)
    return replace(check(catalog, checked.stack, own_question, runs), files=checked.files, loading=checked.loading)


def _judge(
    catalog: Catalog, stack: UserStack, question: Question
) -> tuple[list[FailureInStack], tuple[BreakingCalls, ...], Mapping[str, str]]:
    """Return how each failure stands, the calls that break, and by package why calls into it can't be judged."""
    unknown = unrecorded(catalog, stack.stack)
    standings = [stand(catalog, stack, failure, question.jobs, unknown) for failure in catalog.failures]
    return judged(standings, _judgements(catalog, stack, question)), *breaking_calls(
        catalog, stack.stack, question.jobs
    )


def _undecided(stack: UserStack, failures: Sequence[FailureInStack]) -> Iterator[Unread]:
    """Yield the components named without a version that alone decide whether a failure occurs."""
    for name in stack.limits:
        decided = [
            str(failure.failure.id)
            for failure in failures
            if failure.standing is Standing.WITH_VERSIONS
            and name in failure.depends
            and stack.limits.keys() >= set(failure.depends)
        ]
        if decided and name not in RECORDED:
            text = f"no exact version of {component_title(name)} is stated, which decides {', '.join(decided)}"
            yield Unread(UnreadKind.VERSION, text, stack.places[name], f"name it, such as {short(name)}=VERSION")


def _unnamed(stack: UserStack, required: Sequence[str]) -> Iterator[Unread]:
    """Yield the required components that the input does not name."""
    for name in required:
        if stack.stack[name] is UNKNOWN and name not in stack.limits:
            text, fix = f"{component_title(name)} is required and not named", f"name it, such as {short(name)}=VERSION"
            yield Unread(UnreadKind.PACKAGE, text, COMMAND_LINE, fix)


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


def _explained(
    catalog: Catalog,
    stack: UserStack,
    one: FailureInStack,
    question: Question,
    runs: Mapping[str, tuple[PastResult, ...]],
    broken_in: Callable[[Stack], set[str]],
) -> FailureInStack:
    one = replace(one, runs=runs.get(one.failure.id, ()))
    if one.standing not in EXPLAINED:
        return one
    one = replace(one, evidence=evidence_of(night_of(one.failure)))
    texts = [StackChange("text", each.text, each.verified) for each in one.failure.workarounds]
    known = " ".join(each.text for each in texts)
    versions = list(version_changes(catalog, stack, one.failure, broken_in))
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
