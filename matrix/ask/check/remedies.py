"""What to do about a break: the nearest version without it, what upgrades change, the case that proves it. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from matrix.ask.check.calls import breaking_calls
from matrix.ask.check.rulings import ChangeKind, FailureInStack, Rulings, StackChange, Standing
from matrix.ask.check.training_job import NO_JOB, UserJob
from matrix.ask.check.user_stack import UserStack, recorded
from matrix.ground.cases.cells import VARIED, excluded, expected, is_complete, package_sets, plan_case, versions_of
from matrix.ground.cases.machine_requirements import Fit, Fitting, possible
from matrix.ground.catalog.failure import Case, Expectation, Failure, Level
from matrix.ground.catalog.model import Base, Catalog, Container
from matrix.ground.catalog.stack import (
    ABSENT,
    BASE,
    MCORE,
    PYTHON,
    TE,
    TORCH,
    UNKNOWN,
    WRITER,
    Stack,
    Value,
    component_title,
    short,
)
from matrix.ground.catalog.versions import minor, parse

CONTENTS: Final = "its torch and its Transformer Engine"  # not known of some images
DRIVER_FIT: Final = "whether the driver runs the image"  # of what is not known, where no fact states it
TRIED_LEVELS: Final = (Level.CPU, Level.CONTRACT, Level.GPU)  # the level that every machine has first


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


def breaks_of(rulings: Rulings, fitted: Fitting | None) -> Breaks:
    """Return what breaks in a stack; `fitted` is whether its driver runs its image, None where nothing asks."""
    failures, calls = rulings.failures, rulings.calls
    certain = {str(failure.failure.id) for failure in failures if failure.certain}
    certain |= {f"{calls_part(call.into)}: {call.needs}" for call in calls if call.certain}
    unknown = {str(failure.failure.id) for failure in failures if failure.standing is Standing.UNKNOWN}
    unknown |= {calls_part(component_title(package)) for package in rulings.problems}
    unknown |= {DRIVER_FIT} if fitted and fitted.fit is Fit.UNKNOWN else set()
    return Breaks(frozenset(certain), frozenset(unknown), tuple(clash.text for clash in rulings.clashes))


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
        newest, verdict, best = self.steps[-1], self.may_take_newest, self.best
        names, folded = newest.unknown[:3], len(newest.unknown) - 3
        open_parts = CONTENTS if CONTENTS in names else ", ".join([*names, *[f"{folded} more"] * (folded > 0)])
        reason = {
            "yes": "no new break is known",
            "no": f"blocked by {'; '.join(newest.clashes) or ', '.join(newest.new)}",
            "unknown": f"no new break is known; not judged there: {open_parts}",
        }[verdict]
        texts = [f"{title} {newest.version}, the newest: {verdict.upper()}: {reason}"]
        if newest.fixed and verdict != "no":
            texts.append(f"fixed there: {', '.join(newest.fixed)}")
        if newest.unchanged and verdict != "no":
            texts.append(f"unchanged there: {', '.join(newest.unchanged)}")
        if best is None:
            texts.append(f"each version after {self.current} is blocked" if verdict == "no" else "no version is known")
        elif best != newest:
            texts.append(
                f"the newest version {'that nothing blocks' if verdict == 'no' else 'that is known'} is {best.version}"
            )
        if self.apart:
            texts.append(f"{title} does not affect: {', '.join(self.apart)}")
        if self.resuming and best:
            texts.append(f"reading this stack's checkpoints with {best.version}: {self.resuming}")
        return "; ".join(texts)

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


def with_remedies(
    catalog: Catalog, user: UserStack, one: FailureInStack, broken_in: Callable[[Stack], set[str]], *, here: bool
) -> FailureInStack:
    """Return a failure that occurs with the ways around it and the command that proves it; `here` as in Question.

    A flag, or a version, that a text of the catalog states is not named twice.
    """
    texts = [StackChange(ChangeKind.TEXT, each.text, each.verified) for each in one.failure.workarounds]
    known = " ".join(each.text for each in texts)
    versions = list(version_changes(catalog, user, one.failure, broken_in))
    job = [
        each
        for each in one.workarounds
        if not (each.kind is ChangeKind.FLAG and each.text.removeprefix("add ") in known)
        and not any(other.text.startswith(f"{each.text} ") for other in versions)
    ]
    command = f'megatrix run --here --select "failure=={one.failure.id}"'
    prove = command if here and one.failure.case else proof(catalog, one.failure, user.stack)
    return replace(one, workarounds=(*job, *versions, *texts), prove=prove)


def version_changes(
    catalog: Catalog, user: UserStack, failure: Failure, broken_in: Callable[[Stack], set[str]]
) -> Iterator[StackChange]:
    """Yield, for each component that the failure's rules bound, the nearest version without it or a new break.

    `broken_in` is `broken` with the jobs: the failures of a stack have the same neighbours, so it keeps its answers.
    """
    stack = user.stack
    bounded = {component for rule in failure.affected if not rule.cases for component in rule.bounds}
    breaks = broken_in(stack)
    related = [each for each in catalog.failures if set(each.references) & set(failure.references)]  # of one thread
    for component in (MCORE, TE, TORCH):
        if component not in bounded or not stack.version(component):
            continue
        in_image = component == TORCH and catalog.container_in(stack) is not None

        def helps(other: Stack) -> bool:
            broken_there = (each for each in related if each.expectation(other) is Expectation.BROKEN)
            known = all(each.expectation(stack) is Expectation.BROKEN for each in broken_there)
            return failure.expectation(other) is Expectation.WORKS and known and not broken_in(other) - breaks

        if changed := nearest(catalog, stack, BASE if in_image else component, helps):
            yield StackChange(ChangeKind.VERSION, _named(stack, changed, component))


def broken(catalog: Catalog, stack: Stack, jobs: Sequence[UserJob]) -> set[str]:
    """Return what surely breaks in a stack with these jobs, by the rules alone: ids, and what reaches calls.

    `breaks_of` also counts preflights, which judge a job on a machine. Here each failure that breaks compares tens of
    releases, and a preflight of the same job takes longer than all rules.
    """
    failures = {
        str(failure.id)
        for failure in catalog.failures
        if failure.expectation(stack) is Expectation.BROKEN
        and any(failure.reach(stack, job.arguments).certain for job in jobs or (NO_JOB,))
    }
    return failures | {calls.needs for calls in breaking_calls(catalog, stack, jobs)[0] if calls.certain}


def upgrades(catalog: Catalog, stack: Stack, component: str, breaks: Callable[[Stack], Breaks]) -> Upgrade:
    """Return what each newer version of a component changes in the rest of a stack; `breaks` judges a stack."""
    if component == BASE and catalog.container_in(stack) is None:
        component = TORCH
    current = stack.version(component)
    if current is None:
        return Upgrade(component, problem="the stack names none")
    today = breaks(stack)
    stacks = list(_others(catalog, stack, component, newer=True))
    apart = today.certain & unaffected(catalog, component)
    judged = {newer[component]: upgrade_step(str(newer[component]), today, breaks(newer), apart) for newer in stacks}
    versions = [base.id for base in _family(catalog, stack)[1]] if component == BASE else list(map(str, judged))
    steps = tuple(judged.get(version) or UpgradeStep(version, unknown=(CONTENTS,)) for version in versions)
    upgrade = Upgrade(component, current, steps, tuple(sorted(apart)))
    if upgrade.best is None:
        return upgrade
    best = next(newer for newer in stacks if newer[component] == upgrade.best.version)
    return replace(upgrade, resuming=_resuming(catalog, stack, best))


def unaffected(catalog: Catalog, component: str) -> frozenset[str]:
    """Return the failures that no version of a component affects; with an image, all that images contain changes."""
    images = {name for image in catalog.containers for name in image.contents()} - {MCORE}
    changed = {component, *({TORCH: {BASE}, BASE: images}.get(component, ()))}
    return frozenset(
        str(failure.id)
        for failure in catalog.failures
        if not any(
            changed & set(clause.components) for clause in (*failure.affected, *failure.works, *failure.reached_by)
        )
    )


def _resuming(catalog: Catalog, before: Stack, after: Stack) -> str:
    """Return what is known of reading this stack's checkpoints after the upgrade."""
    reader = after.with_({writer: before[component] for writer, component in WRITER.items()})
    by_expectation: dict[Expectation, list[str]] = {}
    for failure in catalog.failures:
        if WRITER.keys() & set(failure.axes):
            by_expectation.setdefault(failure.expectation(reader), []).append(failure.id)
    words = {Expectation.BROKEN: "may break", Expectation.WORKS: "known to work", Expectation.UNKNOWN: "unknown"}
    parts = [f"{word}: {', '.join(by_expectation[side])}" for side, word in words.items() if side in by_expectation]
    return "" if by_expectation.keys() <= {Expectation.UNKNOWN} else "; ".join(parts)


def nearest(
    catalog: Catalog, stack: Stack, component: str, helps: Callable[[Stack], bool], *, newer: bool = False
) -> Stack | None:
    """Return the stack with the nearest version of a component that helps, newer ones first; `newer`: no older ones."""
    for candidate in _others(catalog, stack, component, newer=newer):
        if catalog.excluded(candidate) is None and helps(candidate):
            return candidate
    return None


def _others(catalog: Catalog, stack: Stack, component: str, *, newer: bool) -> Iterator[Stack]:
    if component == BASE:
        image, (older, later_images) = catalog.container_in(stack), _family(catalog, stack)
        unknown = dict.fromkeys(image.contents().components if image else (), UNKNOWN)  # another image has its own
        for base in (*later_images, *(() if newer else reversed(older))):
            contents = base.contents()
            if contents.version(TORCH) and contents.version(TE):
                core = {MCORE: stack[MCORE]}
                yield stack.with_({**unknown, PYTHON: contents[PYTHON], **contents.components, **core})
        return
    current = parse(str(stack[component]))
    versions = recorded(catalog, component)
    later = [version for version in versions if parse(version) > current]
    earlier = [version for version in versions if parse(version) < current]
    for version in (*later, *(() if newer else reversed(earlier))):
        changed = stack.with_({component: version})
        yield changed.with_({BASE: ABSENT}) if component == TORCH else changed


def _family(catalog: Catalog, stack: Stack) -> tuple[list[Container], list[Container]]:
    """Return the older and the newer images of the family of a stack's image, oldest first."""
    image = catalog.container_in(stack)
    if image is None:
        return [], []
    family = [base for base in catalog.containers if base.id.partition("-")[0] == image.id.partition("-")[0]]
    index = family.index(image)
    return family[:index], family[index + 1 :]


def _named(before: Stack, after: Stack, component: str) -> str:
    if component == TORCH and after.version(BASE):
        return f"{after[BASE]} (torch {after[TORCH]}, Transformer Engine {after[TE]})"
    return f"{component_title(component)} {after[component]} instead of {before[component]}"


def proof(catalog: Catalog, failure: Failure, stack: Stack) -> str:
    """Return the command that runs a case of the failure in the matrix's cell nearest to a stack, "" without one."""
    for level in TRIED_LEVELS:
        for case in failure.case:
            if level in case.levels and not case.picked and (cell := _planned(catalog, failure, case, level, stack)):
                selected = {"failure": failure.id, "case": case.name, "level": level.value, **cell}
                expression = " and ".join(f"{name}=={value}" for name, value in selected.items())
                return f'megatrix run --select "{expression}"'
    return ""


def _planned(catalog: Catalog, failure: Failure, case: Case, level: Level, stack: Stack) -> dict[str, str] | None:
    """Return the base and versions of a planned cell in which the case is expected broken, None without one."""
    for base in _bases(catalog, failure, case, stack.version(TORCH)):
        for values, packages in itertools.product(_combined(catalog, failure, stack, base), package_sets(failure)):
            planned = catalog.cell(base.id, {**values, **packages}, packages)
            broken = expected(catalog, failure, planned.stack, case) is Expectation.BROKEN  # first: the rest is slow
            allowed = broken and is_complete(failure, case, planned) and excluded(catalog, failure, planned) is None
            if allowed and possible(catalog, plan_case(catalog, failure, case, level, planned)):
                items = {**values, **packages}.items()
                return {"base": base.id, **{short(name): str(value) for name, value in items if value is not ABSENT}}
    return None


def _bases(catalog: Catalog, failure: Failure, case: Case, torch: str | None) -> Sequence[Base]:
    """Return the bases that a case runs on, the nearest to this torch first."""
    if case.bases:
        return [catalog.base(one) for one in case.bases]
    if BASE not in failure.axes:
        return catalog.readers
    usual, newest = failure.night.bases if failure.night else (), catalog.wheels[::-1]
    return sorted(newest, key=lambda one: (_distance(one.torch, torch), one.id not in usual))


def _combined(catalog: Catalog, failure: Failure, stack: Stack, base: Base) -> Iterator[dict[str, Value]]:
    """Yield the stack's versions, where they are planned; of a writer that it does not name, each, newest first."""
    choices: list[list[Value]] = []
    for component in VARIED:
        current, planned = stack[component], versions_of(catalog, failure, component, base)
        unnamed = component in WRITER and not stack.version(component)
        tried = planned[::-1] if unnamed else [version for version in planned if version == current]
        choices.append(tried if component in failure.axes else [ABSENT])
    return (dict(zip(VARIED, versions, strict=True)) for versions in itertools.product(*choices))


def _distance(torch: str, wanted: str | None) -> int:
    """Return 0 for the same torch, 1 for one of the same minor, 2 for another."""
    return 0 if torch == wanted else 1 if wanted and minor(torch) == minor(wanted) else 2
