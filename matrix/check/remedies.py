"""The nearest versions at which a failure does not occur, and the case of the matrix that proves it. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from matrix.catalog.failure import Case, Expectation, Failure, Level
from matrix.catalog.model import Base, Catalog, Container
from matrix.catalog.stack import (
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
from matrix.catalog.versions import minor, parse
from matrix.check.answer import CONTENTS, Breaks, StackChange, Upgrade, UpgradeStep, upgrade_step
from matrix.check.calls import breaking_calls
from matrix.check.training_job import NO_JOB, UserJob
from matrix.check.user_stack import UserStack, recorded
from matrix.planning.cases import VARIED, excluded, expected, is_complete, package_sets, plan_case, versions_of
from matrix.planning.night import possible

TRIED_LEVELS: Final = (Level.CPU, Level.CONTRACT, Level.GPU)  # the level that every machine has first


def version_changes(
    catalog: Catalog, user: UserStack, failure: Failure, broken_in: Callable[[Stack], set[str]]
) -> Iterator[StackChange]:
    """Yield, for each component that the failure's rules bound, the nearest version without it or a new break.

    `broken_in` is `broken` with the jobs: the failures of a stack have the same neighbours, so it keeps its answers.
    """
    stack = user.stack
    bounded = {component for rule in failure.affected if not rule.cases for component in rule.bounds}
    breaks = broken_in(stack)
    for component in (MCORE, TE, TORCH):
        if component not in bounded or not stack.version(component):
            continue
        in_image = component == TORCH and catalog.container_in(stack) is not None

        def helps(other: Stack) -> bool:
            works = failure.expectation(other) is Expectation.WORKS
            return works and not broken_in(other) - breaks

        if changed := nearest(catalog, stack, BASE if in_image else component, helps):
            yield StackChange("version", _named(stack, changed, component))


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
    nothing_known = by_expectation.keys() <= {Expectation.UNKNOWN}
    return "" if nothing_known else f"resuming from this stack's checkpoints: {'; '.join(parts)}"


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
