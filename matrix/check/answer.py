"""What breaks in a stack, how certain that is, and what to do: the answer of `megatrix check`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from matrix.catalog.failure import Expectation, Failure, Rule, Ruling
from matrix.catalog.model import Catalog, Container
from matrix.catalog.place import Place
from matrix.catalog.reach import JobArguments, Reach, Reached
from matrix.catalog.stack import ABSENT, BASE, CUDA, DRIVER, MCORE, TE, TOOLKIT, TORCH, Stack, component_title
from matrix.catalog.versions import spans
from matrix.check.files.declared import Unread, UnreadKind
from matrix.check.training_job import NO_JOB, UserJob
from matrix.check.user_stack import COMMAND_LINE, UserStack, decide, possible, recorded, unrecorded
from matrix.errors import ExitStatus
from matrix.kit.preflight import Answer, Report
from matrix.planning.cases import masked_by
from matrix.planning.driver_fit import Fit, Fitting, enough, fit_of

if TYPE_CHECKING:  # not needed for every answer: 0.1 s
    from matrix.check.checkpoint_settings import Checkpoint
    from matrix.check.job_site import JobSite
    from matrix.contract.finding import Finding
    from matrix.linking.load_report import LoadReport
    from matrix.store.trend import PastResult


MEGATRON: Final = (TORCH, MCORE, TE)  # a stack without any of them is not one that the catalog judges
CONTENTS: Final = "its torch and its Transformer Engine"  # not known of some images
DRIVER_FIT: Final = "whether the driver runs the image"  # of what is not known, where no fact states it


class Standing(str, Enum):
    """How a failure stands in a stack, most certain first."""

    WILL_BREAK = "will break"
    WITH_OPTIONS = "breaks with these options"
    SILENT = "silently different"
    WITH_VERSIONS = "breaks with versions that are not named"
    UNKNOWN = "unknown"
    NOT_REACHED = "not reached"
    WORKS = "known to work"


class CheckAnswer(str, Enum):
    """What `megatrix check` answers of a stack. Of several stacks the first of these counts: a file that states nothing
    does not fail those that do."""

    BREAKS = "breaks"
    UNKNOWN = "unknown"
    NONE_KNOWN = "nothing known to break"
    NOTHING_CHECKED = "nothing-checked"

    def status(self, *, allow_unknown: bool = False) -> ExitStatus:
        """Return the exit status."""
        if self is CheckAnswer.BREAKS:
            return ExitStatus.BAD
        return ExitStatus.GOOD if self is CheckAnswer.NONE_KNOWN or allow_unknown else ExitStatus.NOTHING


def answer_of(*, breaks: bool, unread: Collection[Unread], checked: bool = True) -> CheckAnswer:
    """Return the answer for a stack; `checked`: whether there was anything to check."""
    if breaks:
        return CheckAnswer.BREAKS
    if unread:
        return CheckAnswer.UNKNOWN
    return CheckAnswer.NONE_KNOWN if checked else CheckAnswer.NOTHING_CHECKED


def answer_of_all(answers: Iterable[CheckAnswer]) -> CheckAnswer:
    """Return the answer for several stacks together."""
    return min(answers, key=list(CheckAnswer).index, default=CheckAnswer.NOTHING_CHECKED)


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
    `reason` is the catalog's evidence, `needs` what must hold besides, "" if nothing, `depends` the components without
    a version that decide. `hidden_by` is the failure that comes first. `evidence` states when the project ran or read
    it, `runs` are the last runs on this machine by level. `prove` is a command that reproduces it, "" where the matrix
    has no case. `report` is that of the failure's preflight.
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
            "evidence": self.evidence,
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
    return f"{component_title(component)} {spans([one for one in versions if one in bound], versions) or bound.text}"


def lacking(stack: Stack, failure: Failure) -> str:
    """Return the package that every rule of a failure needs and the stack lacks, "" if there is none."""
    general = [rule for rule in failure.affected if not rule.cases]
    for component in (TE, MCORE, TORCH):
        if stack[component] is ABSENT and general and all(component in rule.bounds for rule in general):
            return component_title(component)
    return ""


def stand(
    catalog: Catalog, user: UserStack, failure: Failure, jobs: Sequence[UserJob], unknown: Mapping[str, str]
) -> FailureInStack:
    """Return how a failure stands by its rules and the arguments of the jobs; `unknown` are those of `unrecorded`."""
    stack = user.stack
    ruling = failure.ruling(stack, decide=partial(decide, catalog, user))
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
    job, reached = reaching(jobs, lambda arguments: failure.reach(stack, arguments))
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
        workarounds=tuple(_flags(reached)),
    )


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
    if checkpoint and checkpoint.mark and core and core not in checkpoint.mark.reads:
        excluding.append(Clash(f"megatron-core {core} can't read {checkpoint}", user.place(MCORE)))
    carrier, fitted = _carrier(catalog, stack), fit_of(catalog, stack)
    if carrier and fitted and fitted.fit is Fit.TOO_OLD:
        would = enough(catalog, carrier)
        more = f"; driver {would} would do" if would else ""
        excluding.append(Clash(f"driver {driver} is too old: {fitted.reason}{more}", user.place(DRIVER)))
    return excluding


def _carrier(catalog: Catalog, stack: Stack) -> Container | str | None:
    """Return what has the CUDA of a stack: an image, or the version of wheels where there is no image."""
    return stack.version(CUDA) if stack[TOOLKIT] is ABSENT else catalog.container_in(stack)


def undecided_driver(catalog: Catalog, user: UserStack) -> Iterator[Unread]:
    """Yield that no fact states whether the driver runs the image; a driver that the catalog lacks is unread itself."""
    carrier, fitted = _carrier(catalog, user.stack), fit_of(catalog, user.stack)
    if carrier and fitted and fitted.fit is Fit.UNKNOWN and DRIVER not in unrecorded(catalog, user.stack):
        name = f"CUDA {carrier}" if isinstance(carrier, str) else carrier.id
        text = f"it is not known whether driver {user.stack[DRIVER]} runs {name}: {fitted.reason}"
        would = enough(catalog, carrier)
        fix = f"driver {would} runs it" if would else f"the release notes of {name} state the drivers that run it"
        yield Unread(UnreadKind.VERSION, text, user.place(DRIVER) or COMMAND_LINE, fix)


@dataclass(frozen=True)
class Breaks:
    """What is certain to break in a stack: ids of failures and what reaches calls; and the parts not known there."""

    certain: frozenset[str]
    unknown: frozenset[str] = frozenset()
    clashes: tuple[str, ...] = ()

    def state(self, name: str) -> str:
        """Return "certain", "unknown" or "" for a part; a call that breaks is unknown where calls can't be judged."""
        if name in self.certain:
            return "certain"
        return "unknown" if name in self.unknown or self.unknown & {name.partition(": ")[0]} else ""


def calls_part(title: str) -> str:
    """Return what upgrades call the calls into a package with this title."""
    return f"calls into {title}"


def breaks_of(
    failures: Collection[FailureInStack],
    calls: Iterable[BreakingCalls],
    problems: Mapping[str, str],
    excluding: Iterable[Clash],
    fitted: Fitting | None,
) -> Breaks:
    """Return what breaks in a stack; `problems` are the reasons why its calls can't be judged, by package."""
    certain = {str(failure.failure.id) for failure in failures if failure.certain}
    certain |= {f"{calls_part(call.into)}: {call.needs}" for call in calls if call.certain}
    unknown = {str(failure.failure.id) for failure in failures if failure.standing is Standing.UNKNOWN}
    unknown |= {calls_part(component_title(package)) for package in problems}
    unknown |= {DRIVER_FIT} if fitted and fitted.fit is Fit.UNKNOWN else set()
    return Breaks(frozenset(certain), frozenset(unknown), tuple(clash.text for clash in excluding))


# What an upgrade does to a part: its state before, its state after -> the field of UpgradeStep; none: no change.
CHANGES: Final[Mapping[str, Mapping[str, str]]] = {
    "certain": {"certain": "unchanged", "unknown": "unknown", "": "fixed"},
    "unknown": {"certain": "new"},
    "": {"certain": "new", "unknown": "unknown"},
}


@dataclass(frozen=True)
class UpgradeStep:
    """What a newer version of a component changes: ids of breaks; `unknown` are parts that are no longer known."""

    version: str
    fixed: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    clashes: tuple[str, ...] = ()

    @property
    def blocking(self) -> tuple[str, ...]:
        """What forbids the version: new breaks, and parts that exclude each other."""
        return (*self.clashes, *self.new)


def upgrade_step(version: str, before: Breaks, after: Breaks, apart: Collection[str]) -> UpgradeStep:
    """Return what a version changes; breaks of `apart` are left out, since no version of the component affects them."""
    parts: dict[str, list[str]] = {}
    for name in sorted((before.certain | after.certain | after.unknown) - set(apart)):
        if change := CHANGES.get(before.state(name), {}).get(after.state(name)):
            parts.setdefault(change, []).append(name)
    clashes = tuple(text for text in after.clashes if text not in before.clashes)
    return UpgradeStep(version, **{change: tuple(names) for change, names in parts.items()}, clashes=clashes)


@dataclass(frozen=True)
class Upgrade:
    """The newer versions of a component, oldest first, in the rest of a stack.

    `apart` are breaks of the stack that the component does not affect. `resuming` is what is known of reading the
    stack's checkpoints with the newest version that nothing blocks. `problem` is the reason why there are no steps.
    """

    component: str
    current: str = ""
    steps: tuple[UpgradeStep, ...] = ()
    apart: tuple[str, ...] = ()
    resuming: str = ""
    problem: str = ""

    @property
    def best(self) -> UpgradeStep | None:
        """The newest version that nothing blocks; not an image of which nothing is known."""
        return next((step for step in reversed(self.steps) if not step.blocking and CONTENTS not in step.unknown), None)

    @property
    def may_take_newest(self) -> str:
        """Return "yes", "no", "unknown" where something is no longer known there, "" without a newer version."""
        if not self.steps:
            return ""
        newest = self.steps[-1]
        return "no" if newest.blocking else "unknown" if newest.unknown else "yes"

    def __str__(self) -> str:
        title = component_title(self.component)
        if not self.steps:
            return f"{title}: {self.problem or f'no newer version than {self.current} is known'}"
        newest, verdict = self.steps[-1], self.may_take_newest
        reason = {
            "yes": "no new break is known there",
            "no": f"{'; '.join(newest.clashes) or ', '.join(newest.new)} blocks it",
            "unknown": f"no new break is known there, but {len(newest.unknown)} parts of the answer are not known",
        }[verdict]
        texts = [f"{title}: may I take {newest.version}, the newest? {verdict}: {reason}"]
        if newest.fixed and verdict != "no":
            texts.append(f"fixed there: {', '.join(newest.fixed)}")
        if newest.unchanged and verdict != "no":
            texts.append(f"unchanged there: {', '.join(newest.unchanged)}")
        if verdict == "no":
            best = f"the newest version that nothing blocks is {self.best.version}" if self.best else ""
            texts.append(best or f"each version after {self.current} is blocked")
        if self.apart:
            texts.append(f"{title} does not affect: {', '.join(self.apart)}")
        return "; ".join((*texts, *filter(None, [self.resuming])))

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "component": self.component,
            "current": self.current,
            "answer": str(self),
            "may_take_newest": self.may_take_newest,
            "best": self.best.version if self.best else "",
            "apart": list(self.apart),
            "versions": [
                {name: value if name == "version" else list(value) for name, value in vars(step).items()}
                for step in self.steps
            ],
        }


@dataclass(frozen=True)
class CheckResult:
    """The whole answer for one stack.

    `calls_problem` is the reason why the calls could not be read, `upgrades` are the newer versions of each requested
    component. `files` are those that declare the stack. `loading` is what of its compiled packages does not load.
    """

    stack: UserStack
    jobs: tuple[UserJob, ...]
    failures: tuple[FailureInStack, ...]
    clashes: tuple[Clash, ...] = ()
    calls: tuple[BreakingCalls, ...] = ()
    calls_problem: str = ""
    upgrades: tuple[Upgrade, ...] = ()
    host: JobSite | None = None
    checkpoint: Checkpoint | None = None
    files: tuple[str, ...] = ()
    loading: LoadReport | None = None

    def of(self, standing: Standing) -> list[FailureInStack]:
        """Return the failures of one group."""
        return [one for one in self.failures if one.standing is standing]

    @property
    def breaks(self) -> bool:
        """Return whether something is known to break, without any further option or version."""
        certain = (*(one.certain for one in self.failures), *(one.certain for one in self.calls))
        return bool(self.clashes) or any(certain) or bool(self.loading and self.loading.breaks)

    @property
    def checked(self) -> bool:
        """Return whether there was anything to check: a component of Megatron's stack, or a job that may have one."""
        stack = self.stack.stack
        named = any(stack.version(name) or name in self.stack.limits for name in MEGATRON)
        return named or (any(job.place for job in self.jobs) and any(stack[name] is not ABSENT for name in MEGATRON))

    @property
    def answer(self) -> CheckAnswer:
        """The answer for the stack."""
        return answer_of(breaks=self.breaks, unread=self.stack.unread, checked=self.checked)

    def to_json(self) -> dict[str, Any]:
        """Return one object of plain JSON values; docs/schema/check.json describes it."""
        return {
            "answer": self.answer.value,
            "breaks": self.breaks,
            "files": list(self.files),
            "stack": self.stack.to_json(),
            "jobs": [job.to_json() for job in self.jobs],
            "failures": [one.to_json() for one in self.failures],
            "clashes": [one.to_json() for one in self.clashes],
            "calls": [one for each in self.calls for one in each.to_json()],
            "calls_problem": self.calls_problem,
            "upgrades": [upgrade.to_json() for upgrade in self.upgrades],
            "loading": self.loading.to_json() if self.loading else None,
            "checkpoint": self.checkpoint.to_json() if self.checkpoint else None,
            "machine": self.host.to_json() if self.host else None,
        }


ORDER: Final = tuple(Standing)


def ordered(found: Iterable[FailureInStack]) -> tuple[FailureInStack, ...]:
    """Return the failures by group, the most certain first."""
    return tuple(sorted(found, key=lambda one: (ORDER.index(one.standing), not one.certain, one.failure.id)))
