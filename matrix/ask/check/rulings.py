"""What the catalog rules of a stack and its jobs: failures, calls, parts that exclude each other. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from matrix.ask.check.files.declared import Unread, UnreadKind
from matrix.ask.check.training_job import NO_JOB, UserJob
from matrix.ask.check.user_stack import COMMAND_LINE, UserStack, decide, possible, recorded, unrecorded
from matrix.ground.cases.cells import masked_by
from matrix.ground.cases.machine_requirements import Fit, fit_of, minimum_driver
from matrix.ground.catalog.failure import Expectation, Failure, Rule, Ruling
from matrix.ground.catalog.model import Catalog, Container
from matrix.ground.catalog.reach import JobArguments, Reach, Reached
from matrix.ground.catalog.stack import (
    ABSENT,
    BASE,
    CUDA,
    DRIVER,
    MCORE,
    PYTHON,
    TE,
    TOOLKIT,
    TORCH,
    UNKNOWN,
    Place,
    Stack,
    component_title,
    components,
)
from matrix.ground.catalog.versions import format_ranges
from matrix.kit.preflight import Answer, Report

if TYPE_CHECKING:  # not needed for every answer: 0.1 s
    from matrix.ask.check.checkpoint_settings import Checkpoint
    from matrix.ground.verdicts.trend import PastResult
    from matrix.read.api.finding import Finding


class Standing(str, Enum):
    """How a failure stands in a stack, most certain first."""

    WILL_BREAK = "will break"
    WITH_OPTIONS = "breaks with these options"
    SILENT = "silently different"
    WITH_VERSIONS = "breaks with versions that are not named"
    UNKNOWN = "unknown"
    NOT_REACHED = "not reached"
    WORKS = "known to work"


ORDER: Final = tuple(Standing)
KNOWN_BREAK: Final = (Standing.WILL_BREAK, Standing.WITH_OPTIONS, Standing.SILENT)
BREAKS: Final = (*KNOWN_BREAK, Standing.WITH_VERSIONS)
LEAST_SHARE: Final = 0.1  # of one release among ten: fewer say no more


class ChangeKind(str, Enum):
    """What a change is of: an option, a version, the job (found by a preflight), or a text of the catalog."""

    FLAG = "flag"
    VERSION = "version"
    JOB = "job"
    TEXT = "text"


@dataclass(frozen=True)
class StackChange:
    """One change after which the failure does not occur in this stack.

    `verified` names the run that verified it, "" if there was none.
    """

    kind: ChangeKind
    text: str
    verified: str = ""

    def to_json(self) -> dict[str, str]:
        """Return plain JSON values."""
        return {**vars(self), "kind": self.kind.value}


@dataclass(frozen=True)
class FailureInStack:
    """How one failure stands in a stack.

    `certain`: it occurs, without any further option or version. `missing`: the command lacks an option that it needs.
    `reason` is the catalog's evidence, `needs` what must hold besides, "" if nothing, `depends` the components without
    a version that decide. `hidden_by` is the failure that comes first. `evidence` states when the project ran or read
    it, `runs` are the last runs on this machine by level. `prove` is a command that reproduces it, "" where the matrix
    has no case. `report` is that of the failure's preflight. `undecided` are options of a branch that may not be taken,
    with which it would be certain. `given` counts the conditions that the command's options
    fulfil; `share` is that of the recorded releases which the rule breaks, of the component where it is least.
    """

    failure: Failure
    standing: Standing
    certain: bool = False
    missing: bool = False
    reason: str = ""
    needs: str = ""
    depends: tuple[str, ...] = ()
    hidden_by: str = ""
    evidence: str = ""
    runs: tuple[PastResult, ...] = ()
    workarounds: tuple[StackChange, ...] = ()
    prove: str = ""
    place: Place | None = None
    report: Report | None = None
    undecided: tuple[str, ...] = ()
    given: int = field(default=0, compare=False)
    share: float = field(default=1.0, compare=False)

    @property
    def relevance(self) -> tuple[bool, int, float]:
        """Return what orders failures of one standing: options of the input's own, then its versions and reports."""
        reports = 1 + len(self.failure.references)
        return self.missing, -self.given, -reports if self.certain else -reports / max(self.share, LEAST_SHARE)

    @property
    def fix(self) -> str:
        """Return the fix as one line."""
        return " ".join(self.failure.fix.split())

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        entry, own = self.failure, ("certain", "missing", "reason", "needs", "hidden_by", "evidence")
        return {
            "failure": entry.id,
            "title": entry.title,
            "standing": self.standing.value,
            **{name: getattr(self, name) for name in own},
            "runs": [run.to_json() for run in self.runs],
            "fix": self.fix,
            "workarounds": [one.to_json() for one in self.workarounds],
            "prove": self.prove,
            "source": str(self.place or ""),
            "references": list(self.failure.references),
            "preflight": [answer.to_json() for answer in self.report.answers] if self.report else [],
            "numbers": dict(self.report.data) if self.report else {},
        }


@dataclass(frozen=True)
class BreakingCalls:
    """Calls into one package that break, that no failure of the catalog states, and that a job reaches alike.

    The other fields are those of FailureInStack; `flags` are options that avoid the calls.
    """

    findings: tuple[Finding, ...]
    standing: Standing
    certain: bool = False
    missing: bool = False
    needs: str = ""
    flags: tuple[str, ...] = ()
    place: Place | None = None

    @property
    def into(self) -> str:
        """Return the title of the package that is called."""
        return component_title(self.findings[0].packages[1])

    def to_json(self) -> list[dict[str, Any]]:
        """Return plain JSON values, of each call."""
        own = {"standing": self.standing.value, "certain": self.certain, "missing": self.missing, "needs": self.needs}
        return [{**one.to_json(), **own} for one in self.findings]


@dataclass(frozen=True)
class Clash:
    """Parts of a stack that exclude each other."""

    text: str
    place: Place | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"text": self.text, "source": str(self.place or "")}


@dataclass(frozen=True)
class Rulings:
    """What the catalog rules of a stack; `problems` are the reasons why its calls can't be judged, by package."""

    failures: Sequence[FailureInStack]
    calls: Sequence[BreakingCalls]
    problems: Mapping[str, str]
    clashes: Sequence[Clash]


def needs(catalog: Catalog, user: UserStack, ruling: Ruling) -> str:
    """Return the versions of unknown components that the rules need which may break, "" without such a rule."""
    texts = (
        " and ".join(_need(catalog, user, rule, component) for component in depends)
        for rule, depends in ruling.may_break
    )
    return "; or ".join(dict.fromkeys(texts))


def _need(catalog: Catalog, user: UserStack, rule: Rule, component: str) -> str:
    if component == BASE:
        return f"the image {' or '.join(id for id in rule.base if decide(catalog, user, BASE, (id,)) is None)}"
    bound = rule.bounds[component]
    versions = possible(catalog, user, component) if recorded(catalog, component) else []
    return f"{component_title(component)} {format_ranges(filter(bound.__contains__, versions), versions) or bound.text}"


def lacking(stack: Stack, failure: Failure) -> str:
    """Return the package that every rule of a failure needs and the stack lacks, "" if there is none."""
    general = [rule for rule in failure.affected if not rule.cases]
    for component in (TE, MCORE, TORCH):
        if stack[component] is ABSENT and general and all(component in rule.bounds for rule in general):
            return component_title(component)
    return ""


def judge_failure(
    catalog: Catalog, user: UserStack, failure: Failure, jobs: Sequence[UserJob], unknown: Mapping[str, str]
) -> FailureInStack:
    """Return how a failure stands by its rules and the arguments of the jobs; `unknown` are those of `unrecorded`."""
    stack = user.stack
    limited = partial(decide, catalog, user)
    ruling = failure.ruling(stack, decide=limited)
    rule = ruling.may_break[0][0] if ruling.may_break else ruling.rule
    if doubtful := [why for component, why in unknown.items() if rule and component in rule.bounds]:
        return FailureInStack(failure, Standing.UNKNOWN, reason="; ".join(doubtful))
    if rule is None:
        package = lacking(stack, failure)
        standing = Standing.NOT_REACHED if package else Standing.UNKNOWN
        return FailureInStack(failure, standing, reason=f"there is no {package}" if package else "")
    if ruling.expectation is Expectation.WORKS:
        return FailureInStack(failure, Standing.WORKS, reason=rule.reason)
    versions = needs(catalog, user, ruling)
    job, reached = reaching(jobs, lambda arguments: failure.reach(stack, arguments, limited))
    flags = reached.switches if reached.reach in (Reach.REACHED, Reach.OPEN) else ()
    arguments = job.arguments and replace(job.arguments, perhaps=frozenset())  # as if each branch were taken
    differs = arguments != job.arguments and not versions and not reached.certain
    undecided = reached.by if differs and failure.reach(stack, arguments, limited).certain else ()
    return FailureInStack(
        failure,
        standing_of(reached, silent=failure.silent, needs=versions),
        certain=reached.certain and not versions,
        missing=reached.reach is Reach.MISSING,
        reason=rule.reason,
        needs="; ".join(part for part in (versions and f"with {versions}", reached.needs) if part),
        depends=tuple(name for _, names in ruling.may_break for name in names),
        hidden_by=masked_by(catalog, failure, stack) or "" if not versions else "",
        place=job.place,
        undecided=undecided,
        workarounds=tuple(StackChange(ChangeKind.FLAG, f"add {flag}") for flag in flags),
        given=reached.given,
        share=_share(catalog, stack, rule),
    )


def _share(catalog: Catalog, stack: Stack, rule: Rule) -> float:
    """Return which share of the releases a rule breaks, of the stated component where it is least: 1 says nothing."""
    stated = [(recorded(catalog, name), bound) for name, bound in rule.bounds.items() if stack[name] is not UNKNOWN]
    shares = (sum(map(bound.__contains__, known)) / len(known) if known else 0.0 for known, bound in stated)
    return min(shares, default=1.0)


def reaching(jobs: Sequence[UserJob], reach: Callable[[JobArguments | None], Reached]) -> tuple[UserJob, Reached]:
    """Return the job that reaches something most certainly, and whether it does."""
    found = ((job, reach(job.arguments)) for job in jobs or (NO_JOB,))
    return min(found, key=lambda pair: (not pair[1].certain, pair[1].reach))


def standing_of(reached: Reached, *, silent: bool, needs: str = "") -> Standing:
    """Return how a break stands; `needs` are the versions of open axes that it needs."""
    if reached.reach is Reach.AVOIDED:
        return Standing.NOT_REACHED
    if needs:
        return Standing.WITH_VERSIONS
    if silent:
        return Standing.SILENT
    return Standing.WILL_BREAK if reached.certain else Standing.WITH_OPTIONS


@dataclass(frozen=True)
class PreflightResult:
    """The report of a preflight on a job, and whether the job reaches the preflight's failure."""

    report: Report
    reached: Reached
    job: UserJob


def apply_preflights(found: Iterable[FailureInStack], reports: Mapping[str, PreflightResult]) -> list[FailureInStack]:
    """Return the findings with the results of preflights; `reports` are by the failure that has the preflight.

    An error of a report makes the failure break whose signature it has. A report that clears its failure excludes it.
    """
    errors: dict[str, tuple[Answer, str]] = {}
    for owner, judgement in reports.items():
        for answer in judgement.report.answers:
            if answer.error:
                errors.setdefault(answer.failure or owner, (answer, owner))
    return [_apply(one, errors.get(one.failure.id), reports) for one in found]


def _apply(
    one: FailureInStack,
    error: tuple[Answer, str] | None,
    reports: Mapping[str, PreflightResult],
) -> FailureInStack:
    own = reports.get(one.failure.id)
    if error:
        answer, owner = error
        report, reached, job = reports[owner].report, reports[owner].reached, reports[owner].job
        changes = (StackChange(ChangeKind.JOB, " and ".join(change)) for change in report.changes)
        return replace(
            one,
            standing=Standing.WILL_BREAK if reached.certain else Standing.WITH_OPTIONS,
            certain=reached.certain,
            missing=False,
            reason=f"{answer.error}: {answer.reason}",
            needs=reached.needs,
            workarounds=(*one.workarounds, *changes),
            place=job.place,
            report=report if one.failure.id == owner else None,
        )
    if own is None:
        return one
    report = own.report
    if report.clears and one.standing in (Standing.WILL_BREAK, Standing.WITH_OPTIONS):
        return replace(
            one, standing=Standing.NOT_REACHED, certain=False, reason=report.answers[0].reason, needs="", report=report
        )
    if report.open and one.standing is Standing.WILL_BREAK:
        needs = "; ".join(part for part in (one.needs, report.open) if part)
        return replace(one, standing=Standing.WITH_OPTIONS, certain=False, needs=needs, report=report)
    return replace(one, report=report) if report.judged else one


def clashes(catalog: Catalog, user: UserStack, checkpoint: Checkpoint | None = None) -> list[Clash]:
    """Return the parts that exclude each other: releases, Python, packages, image and driver, a checkpoint to read."""
    stack = user.stack
    core, driver = stack.version(MCORE), stack.version(DRIVER)
    excluding = []
    if reason := catalog.excluded(stack):
        declared = [name for name in stack if f"declares {name}" in reason]
        excluding.append(Clash(reason, user.place(declared[0] if declared else MCORE)))
    excluding += [Clash(reason, user.place(name)) for name, reason in _declared_apart(stack)]
    if checkpoint and checkpoint.mark and core and core not in checkpoint.mark.reads:
        excluding.append(Clash(f"megatron-core {core} can't read {checkpoint}", user.place(MCORE)))
    carrier, fitted = _carrier(catalog, stack), fit_of(catalog, stack)
    if carrier and fitted and fitted.fit is Fit.TOO_OLD:
        would = minimum_driver(catalog, carrier)
        more = f"; driver {would} would do" if would else ""
        excluding.append(Clash(f"driver {driver} is too old: {fitted.reason}{more}", user.place(DRIVER)))
    return excluding


def _declared_apart(stack: Stack) -> Iterator[tuple[str, str]]:
    """Yield each framework whose release declares a range that the stack is outside of, and the reason."""
    for name in [name for name in stack if name in components() and components()[name].framework]:
        from matrix.ground.catalog.distributions import read_distributions  # not needed for most answers: 0.1 s

        release = read_distributions().of(name, stack.version(name) or "")
        for declared, limits in release.ranges(stack.version(PYTHON) or "3.12").items() if release else ():
            version = stack.version(declared)
            if version and not limits.contains(version, prereleases=True):
                has = f"the stack has {version}"
                yield name, f"{component_title(name)} {stack[name]} declares {declared}{limits}; {has}"


def _carrier(catalog: Catalog, stack: Stack) -> Container | str | None:
    """Return what has the CUDA of a stack: an image, or the version of wheels where there is no image."""
    return stack.version(CUDA) if stack[TOOLKIT] is ABSENT else catalog.container_in(stack)


def undecided_driver(catalog: Catalog, user: UserStack) -> Iterator[Unread]:
    """Yield that no fact states whether the driver runs the image; a driver that the catalog lacks is unread itself."""
    carrier, fitted = _carrier(catalog, user.stack), fit_of(catalog, user.stack)
    if carrier and fitted and fitted.fit is Fit.UNKNOWN and DRIVER not in unrecorded(catalog, user.stack):
        name = f"CUDA {carrier}" if isinstance(carrier, str) else carrier.id
        text = f"it is not known whether driver {user.stack[DRIVER]} runs {name}: {fitted.reason}"
        would = minimum_driver(catalog, carrier)
        fix = f"driver {would} runs it" if would else f"the release notes of {name} state the drivers that run it"
        yield Unread(UnreadKind.VERSION, text, user.place(DRIVER) or COMMAND_LINE, fix)


def ordered(found: Iterable[FailureInStack]) -> tuple[FailureInStack, ...]:
    """Return the failures by group: first what the input decides, then what is reported most often."""

    def relevance(one: FailureInStack) -> tuple[int, bool, tuple[bool, int, float], str]:
        return ORDER.index(one.standing), not one.certain, one.relevance, one.failure.id

    return tuple(sorted(found, key=relevance))
