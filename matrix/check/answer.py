"""What breaks in a stack, how certain that is, and what to do: the answer of `megatrix check`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from matrix.catalog.failure import Expectation, Failure, Rule
from matrix.catalog.model import Catalog, Container
from matrix.catalog.reach import JobArguments, Reach, Reached
from matrix.catalog.versions import NONE, spans
from matrix.check.job import NO_JOB, UserJob
from matrix.check.stack import AXES, NAMES, UserStack, allows, possible, unrecorded
from matrix.kit.preflight import Answer, Report
from matrix.planning.cases import masked_by
from matrix.planning.driver_fit import Fit, enough, fitting

if TYPE_CHECKING:  # not needed for every answer: 0.1 s
    from matrix.check.checkpoint import Checkpoint
    from matrix.check.facts import HostFacts
    from matrix.contract.finding import Finding
    from matrix.store.trend import PastResult


class Standing(str, Enum):
    """How a failure stands in a stack, most certain first."""

    WILL_BREAK = "will break"
    WITH_OPTIONS = "breaks with these options"
    SILENT = "silently different"
    WITH_VERSIONS = "breaks with versions that are not named"
    UNKNOWN = "unknown"
    NOT_REACHED = "not reached"
    WORKS = "known to work"


@dataclass(frozen=True)
class StackChange:
    """One change after which the failure does not occur in this stack.

    `kind`: "flag", "version", "job" (found by a preflight) or "text" (of the catalog). `verified` names the run that
    verified it, "" if there was none.
    """

    kind: str
    text: str
    verified: str = ""

    def to_json(self) -> dict[str, str]:
        """Return plain JSON values."""
        return dict(vars(self))


@dataclass(frozen=True)
class FailureInStack:
    """How one failure stands in a stack.

    `certain`: it occurs, without any further option or version. `missing`: the command lacks an option that it needs.
    `reason` is the catalog's evidence, `needs` what must
    hold besides, "" if nothing. `hidden_by` is the failure that comes first. `runs` are the last runs on this machine
    by level. `prove` is a command that reproduces it, "" where the matrix has no case. `report` is that of the
    failure's preflight.
    """

    failure: Failure
    standing: Standing
    certain: bool = False
    missing: bool = False
    reason: str = ""
    needs: str = ""
    hidden_by: str = ""
    runs: tuple[PastResult, ...] = ()
    workarounds: tuple[StackChange, ...] = ()
    prove: str = ""
    source: str = ""
    report: Report | None = None

    @property
    def fix(self) -> str:
        """Return the fix as one line."""
        return " ".join(self.failure.fix.split())

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "failure": self.failure.id,
            "title": self.failure.title,
            "standing": self.standing.value,
            "certain": self.certain,
            "missing": self.missing,
            "reason": self.reason,
            "needs": self.needs,
            "hidden_by": self.hidden_by,
            "runs": [run.to_json() for run in self.runs],
            "fix": self.fix,
            "workarounds": [one.to_json() for one in self.workarounds],
            "prove": self.prove,
            "source": self.source,
            "references": list(self.failure.references),
            "preflight": [answer.to_json() for answer in self.report.answers] if self.report else [],
            "numbers": dict(self.report.data) if self.report else {},
        }


@dataclass(frozen=True)
class BreakingCalls:
    """Calls into Transformer Engine that break, that no failure of the catalog states, and that a job reaches alike.

    The other fields are those of FailureInStack; `flags` are options that avoid the calls.
    """

    findings: tuple[Finding, ...]
    standing: Standing
    certain: bool = False
    missing: bool = False
    needs: str = ""
    flags: tuple[str, ...] = ()
    source: str = ""

    def to_json(self) -> list[dict[str, Any]]:
        """Return plain JSON values, of each call."""
        own = {"standing": self.standing.value, "certain": self.certain, "missing": self.missing, "needs": self.needs}
        return [{**one.to_json(), **own} for one in self.findings]


@dataclass(frozen=True)
class Clash:
    """Two parts of a stack that exclude each other, or a version that may not exist.

    `breaks` is False where it only limits what can be answered.
    """

    text: str
    source: str = ""
    breaks: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return dict(vars(self))


@dataclass(frozen=True)
class Fitted:
    """How the rules of a failure fit a stack with open axes.

    `rule` is the first one that fits, or may. `needs` are the versions of open axes that it needs, "" if none.
    """

    expectation: Expectation
    rule: Rule | None = None
    needs: str = ""


def fit(catalog: Catalog, stack: UserStack, failure: Failure) -> Fitted:
    """Return what the rules without a case expect of a stack, over all values of its open axes."""
    maybe: list[tuple[Rule, str]] = []
    for expectation, rules in ((Expectation.BROKEN, failure.affected), (Expectation.WORKS, failure.works)):
        for rule in rules:
            needs = _needs(catalog, stack, rule) if not rule.cases else None
            if needs == "":
                # A rule that may break comes before one that works in every other case.
                return Fitted(expectation, rule) if not maybe else _uncertain(maybe)
            if needs and expectation is Expectation.BROKEN:
                maybe.append((rule, needs))
    return _uncertain(maybe) if maybe else Fitted(Expectation.UNKNOWN)


def _uncertain(maybe: Sequence[tuple[Rule, str]]) -> Fitted:
    return Fitted(Expectation.BROKEN, maybe[0][0], "; or ".join(dict.fromkeys(needs for _, needs in maybe)))


def _needs(catalog: Catalog, stack: UserStack, rule: Rule) -> str | None:
    """Return the versions of open axes that a rule needs, "" if none, None where the stack excludes the rule."""
    needs = []
    if rule.base and not {stack.cell.base, stack.cell.image} & {*rule.base}:
        images = [base for base in rule.base if allows(stack, "torch", catalog.cell(base).torch)]
        if "base" not in stack.open or not images:
            return None
        needs.append(f"the image {' or '.join(images)}")
    for axis, bound in rule.bounds():
        if not stack.is_open(axis):
            if stack.cell.version(axis) not in bound:
                return None
            continue
        known = possible(catalog, stack, axis, bound.text)
        fitting_ = [version for version in known if version in bound]
        if not fitting_ and known:
            return None
        if fitting_ != known or not known or axis not in stack.limits:
            some = spans(fitting_, known) if axis in NAMES else ""
            needs.append(f"{NAMES.get(axis, axis)} {some or bound.text}")
    return " and ".join(needs)


def absent(stack: UserStack, failure: Failure) -> str:
    """Return the package that every rule of a failure needs and the stack lacks, "" if there is none."""
    general = [rule for rule in failure.affected if not rule.cases]
    for axis in ("te", "mcore", "torch"):
        lacks = axis not in stack.open and getattr(stack.cell, axis) == NONE
        if lacks and general and all(axis in dict(rule.bounds()) for rule in general):
            return AXES[axis]
    return ""


def stand(
    catalog: Catalog, stack: UserStack, failure: Failure, jobs: Sequence[UserJob], unknown: Mapping[str, str]
) -> FailureInStack:
    """Return how a failure stands by its rules and the arguments of the jobs; `unknown` are those of `unrecorded`."""
    fitted = fit(catalog, stack, failure)
    reason = fitted.rule.reason if fitted.rule else ""
    if doubtful := [why for axis, why in unknown.items() if fitted.rule and axis in dict(fitted.rule.bounds())]:
        return FailureInStack(failure, Standing.UNKNOWN, reason="; ".join(doubtful))
    if fitted.expectation is Expectation.WORKS:
        return FailureInStack(failure, Standing.WORKS, reason=reason)
    if fitted.expectation is Expectation.UNKNOWN:
        lacking = absent(stack, failure)
        standing = Standing.NOT_REACHED if lacking else Standing.UNKNOWN
        return FailureInStack(failure, standing, reason=f"there is no {lacking}" if lacking else "")
    job, reached = reaching(jobs, lambda arguments: failure.reach(stack.cell, arguments))
    found = FailureInStack(
        failure,
        standing_of(reached, silent=failure.silent, needs=fitted.needs),
        certain=reached.certain and not fitted.needs,
        missing=reached.reach is Reach.MISSING,
        reason=reason,
        needs=_also(reached, fitted),
        hidden_by=masked_by(catalog, failure, stack.cell) or "" if not fitted.needs else "",
        source=job.source,
    )
    return replace(found, workarounds=tuple(_flags(reached)))


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


def _also(reached: Reached, fitted: Fitted) -> str:
    """Return what must hold besides the stack, or what excludes the failure."""
    return "; ".join(part for part in (fitted.needs and f"with {fitted.needs}", reached.needs) if part)


def _flags(reached: Reached) -> Iterator[StackChange]:
    if reached.reach in (Reach.REACHED, Reach.OPEN):
        yield from (StackChange("flag", f"add {flag}") for flag in reached.switches)


@dataclass(frozen=True)
class PreflightResult:
    """The report of a preflight on a job, and whether the job reaches the preflight's failure."""

    report: Report
    reached: Reached
    job: UserJob


def judged(found: Iterable[FailureInStack], reports: Mapping[str, PreflightResult]) -> list[FailureInStack]:
    """Return the findings with the results of preflights; `reports` are by the failure that has the preflight.

    An error of a report makes the failure break whose signature it has. A report that clears its failure excludes it.
    """
    errors: dict[str, tuple[Answer, str]] = {}
    for owner, judgement in reports.items():
        for answer in judgement.report.answers:
            if answer.error:
                errors.setdefault(answer.failure or owner, (answer, owner))
    return [_judged(one, errors.get(one.failure.id), reports) for one in found]


def _judged(
    one: FailureInStack,
    error: tuple[Answer, str] | None,
    reports: Mapping[str, PreflightResult],
) -> FailureInStack:
    own = reports.get(one.failure.id)
    if error:
        answer, owner = error
        report, reached, job = reports[owner].report, reports[owner].reached, reports[owner].job
        changes = (StackChange("job", " and ".join(change)) for change in report.changes)
        return replace(
            one,
            standing=Standing.WILL_BREAK if reached.certain else Standing.WITH_OPTIONS,
            certain=reached.certain,
            missing=False,
            reason=f"{answer.error}: {answer.reason}" if answer.error else answer.reason,
            needs=_also(reached, Fitted(Expectation.BROKEN)),
            workarounds=(*one.workarounds, *changes),
            source=job.source,
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


def clashes(catalog: Catalog, stack: UserStack, checkpoint: Checkpoint | None = None) -> list[Clash]:
    """Return the parts that exclude each other: releases, Python, packages, image and driver, a checkpoint to read."""
    cell = stack.cell
    found = [Clash(why, stack.sources.get(axis, ""), breaks=False) for axis, why in unrecorded(catalog, stack).items()]
    if reason := catalog.excluded(cell):
        named = [name for name in (*stack.packages, "torch") if f"declares {name}" in reason]
        found.append(Clash(reason, stack.sources.get(named[0] if named else "mcore", "")))
    if checkpoint and checkpoint.mark and cell.mcore != NONE and cell.mcore not in checkpoint.mark.reads:
        found.append(Clash(f"megatron-core {cell.mcore} can't read {checkpoint}", stack.sources.get("mcore", "")))
    image = catalog.bases.get(cell.base if cell.base else cell.image)
    if isinstance(image, Container) and cell.driver != NONE:
        fitted = fitting(catalog, image, cell.driver)
        if fitted.fit is Fit.TOO_OLD:
            would = enough(catalog, image)
            more = f"; driver {would} would do" if would else ""
            found.append(
                Clash(f"driver {cell.driver} is too old: {fitted.reason}{more}", stack.sources.get("driver", ""))
            )
    return found


@dataclass(frozen=True)
class CheckResult:
    """The whole answer.

    `calls_problem` is the reason why the calls could not be read, `upgrades` are the nearest stacks without a known
    break.
    """

    stack: UserStack
    jobs: tuple[UserJob, ...]
    failures: tuple[FailureInStack, ...]
    clashes: tuple[Clash, ...] = ()
    calls: tuple[BreakingCalls, ...] = ()
    calls_problem: str = ""
    upgrades: tuple[str, ...] = ()
    host: HostFacts | None = None
    checkpoint: Checkpoint | None = None

    def of(self, standing: Standing) -> list[FailureInStack]:
        """Return the failures of one group."""
        return [one for one in self.failures if one.standing is standing]

    @property
    def breaks(self) -> bool:
        """Return whether something is known to break, without any further option or version."""
        certain = (*(one.certain for one in self.failures), *(one.certain for one in self.calls))
        return any(certain) or any(one.breaks for one in self.clashes)

    def to_json(self) -> dict[str, Any]:
        """Return one object of plain JSON values; docs/schema/check.json describes it."""
        return {
            "breaks": self.breaks,
            "stack": self.stack.to_json(),
            "jobs": [job.to_json() for job in self.jobs],
            "failures": [one.to_json() for one in self.failures],
            "clashes": [one.to_json() for one in self.clashes],
            "calls": [one for each in self.calls for one in each.to_json()],
            "calls_problem": self.calls_problem,
            "upgrades": list(self.upgrades),
            "checkpoint": self.checkpoint.to_json() if self.checkpoint else None,
            "machine": self.host.to_json() if self.host else None,
        }


ORDER: Final = tuple(Standing)


def ordered(found: Iterable[FailureInStack]) -> tuple[FailureInStack, ...]:
    """Return the failures by group, the most certain first."""
    return tuple(sorted(found, key=lambda one: (ORDER.index(one.standing), not one.certain, one.failure.id)))
