"""The nearest versions at which a failure does not occur, and the case of the matrix that proves it. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from matrix.catalog.cell import WRITER, Cell, pinned
from matrix.catalog.failure import Axis, Case, Expectation, Failure, Level, Package
from matrix.catalog.model import Base, Catalog, Container
from matrix.catalog.versions import NONE, minor, parse
from matrix.check.answer import StackChange
from matrix.check.calls import breaking_calls
from matrix.check.job import NO_JOB, UserJob
from matrix.check.stack import AXES, UserStack, recorded
from matrix.planning.cases import excluded, expected, is_complete, package_sets, plan_case, versions_of
from matrix.planning.night import possible

TRIED_LEVELS: Final = (Level.CPU, Level.CONTRACT, Level.GPU)  # the level that every machine has first


def version_changes(
    catalog: Catalog, stack: UserStack, failure: Failure, jobs: Sequence[UserJob]
) -> Iterator[StackChange]:
    """Yield, for each axis that the failure's rules bound, the nearest version without it and without a new break."""
    cell = stack.cell
    axes = {axis for rule in failure.affected if not rule.cases for axis, _ in rule.bounds()}
    before = broken(catalog, cell, jobs)
    for axis in ("mcore", "te", "torch"):
        if axis not in axes or getattr(cell, axis) == NONE:
            continue
        in_image = axis == "torch" and _container(catalog, cell) is not None

        def helps(other: Cell) -> bool:
            works = failure.expectation(other) is Expectation.WORKS
            return works and not broken(catalog, other, jobs) - before

        if found := nearest(catalog, stack, "base" if in_image else axis, helps):
            yield StackChange("version", _named(cell, found, axis))


def broken(catalog: Catalog, cell: Cell, jobs: Sequence[UserJob]) -> set[str]:
    """Return what surely breaks in a complete cell with these jobs: ids of failures, and what reaches other calls."""
    failures = {
        str(failure.id)
        for failure in catalog.failures
        if failure.expectation(cell) is Expectation.BROKEN
        and any(failure.reach(cell, job.arguments).certain for job in jobs or (NO_JOB,))
    }
    return failures | {one.needs for one in breaking_calls(catalog, cell, jobs)[0] if one.certain}


def upgrade(catalog: Catalog, stack: UserStack, axis: str, jobs: Sequence[UserJob]) -> str:
    """Return the nearest newer version of an axis at which the stack has no known break, as a sentence."""
    if axis == "base" and _container(catalog, stack.cell) is None:
        axis = "torch"
    current = stack.cell.base or stack.cell.image if axis == "base" else getattr(stack.cell, axis)
    if current == NONE:
        return f"{AXES[axis]}: the stack names none"
    found = nearest(catalog, stack, axis, lambda other: not broken(catalog, other, jobs), newer=True)
    if found is None:
        return f"{AXES[axis]}: no newer version than {current} is free of known breaks with the rest of this stack"
    unknown = [one.id for one in catalog.failures if one.expectation(found) is Expectation.UNKNOWN]
    return (
        f"{_named(stack.cell, found, 'torch' if axis == 'base' else axis)}: no known break with the rest of this stack "
        f"({len(unknown)} of {len(catalog.failures)} failures unknown there){_resuming(catalog, stack.cell, found)}"
    )


def _resuming(catalog: Catalog, before: Cell, after: Cell) -> str:
    """Return what is known of reading this stack's checkpoints after the upgrade."""
    reader = replace(after, writer_mcore=before.mcore, writer_te=before.te)
    found: dict[Expectation, list[str]] = {}
    for failure in catalog.failures:
        if set(WRITER) & {axis.value for axis in failure.axes}:
            found.setdefault(failure.expectation(reader), []).append(failure.id)
    words = {Expectation.BROKEN: "may break", Expectation.WORKS: "known to work", Expectation.UNKNOWN: "unknown"}
    parts = [f"{word}: {', '.join(found[one])}" for one, word in words.items() if one in found]
    nothing_known = found.keys() <= {Expectation.UNKNOWN}
    return "" if nothing_known else f"; resuming from this stack's checkpoints: {'; '.join(parts)}"


def nearest(
    catalog: Catalog, stack: UserStack, axis: str, helps: Callable[[Cell], bool], *, newer: bool = False
) -> Cell | None:
    """Return the stack with the nearest version of an axis that helps, newer ones first; `newer`: no older ones."""
    for cell in _others(catalog, stack.cell, axis, newer=newer):
        if catalog.excluded(cell) is None and helps(cell):
            return cell
    return None


def _others(catalog: Catalog, cell: Cell, axis: str, *, newer: bool) -> Iterator[Cell]:
    if axis == "base":
        image = _container(catalog, cell)
        family = [one for one in catalog.containers if image and one.id.partition("-")[0] == image.id.partition("-")[0]]
        place = family.index(image) if image else 0
        for one in (*family[place + 1 :], *(() if newer else reversed(family[:place]))):
            if one.torch and one.te:
                yield replace(cell, base=one.id, image=NONE, torch=one.torch, te=one.te, python=one.python or NONE)
        return
    current = parse(getattr(cell, axis))
    known = recorded(catalog, axis)
    later = [one for one in known if parse(one) > current]
    earlier = [one for one in known if parse(one) < current]
    for version in (*later, *(() if newer else reversed(earlier))):
        changed = replace(cell, **{axis: version})
        yield replace(changed, base="", image=NONE) if axis == "torch" else changed


def _container(catalog: Catalog, cell: Cell) -> Container | None:
    found = catalog.bases.get(cell.base or cell.image)
    return found if isinstance(found, Container) else None


def _named(before: Cell, after: Cell, axis: str) -> str:
    if axis == "torch" and after.base:
        return f"{after.base} (torch {after.torch}, Transformer Engine {after.te})"
    return f"{AXES[axis]} {getattr(after, axis)} instead of {getattr(before, axis)}"


def proof(catalog: Catalog, failure: Failure, cell: Cell) -> str:
    """Return the command that runs a case of the failure in the matrix's cell nearest to `cell`, "" without one."""
    for level in TRIED_LEVELS:
        for case in failure.case:
            if level in case.levels and not case.picked and (found := _planned(catalog, failure, case, level, cell)):
                selected = {"failure": failure.id, "case": case.name, "level": level.value, **found}
                expression = " and ".join(f"{name}=={value}" for name, value in selected.items())
                return f'megatrix run --select "{expression}"'
    return ""


def _planned(catalog: Catalog, failure: Failure, case: Case, level: Level, cell: Cell) -> dict[str, str] | None:
    """Return the axes and packages of a planned cell in which the case is expected broken, None without one."""
    for base in _bases(catalog, failure, case, cell.torch):
        for axes, packages in itertools.product(_combined(catalog, failure, cell, base), package_sets(failure)):
            planned = catalog.cell(base.id, **axes, packages=packages)
            allowed = is_complete(failure, case, planned) and excluded(catalog, failure, planned) is None
            broken = allowed and expected(catalog, failure, planned, case) is Expectation.BROKEN
            if broken and possible(catalog, plan_case(catalog, failure, case, level, planned)):
                named = {axis: version for axis, version in axes.items() if version != NONE}
                return {"base": base.id, **named, **pinned(packages)}
    return None


def _bases(catalog: Catalog, failure: Failure, case: Case, torch: str) -> Sequence[Base]:
    """Return the bases that a case runs on, the nearest to this torch first."""
    if case.bases:
        return [catalog.base(one) for one in case.bases]
    if Axis.BASE not in failure.axes:
        return catalog.readers
    usual, newest = failure.night.bases if failure.night else (), catalog.wheels[::-1]
    return sorted(newest, key=lambda one: (_distance(one.torch, torch), one.id not in usual))


def _combined(catalog: Catalog, failure: Failure, cell: Cell, base: Base) -> Iterator[dict[str, str]]:
    """Yield the cell's versions, where they are planned; of a writer that it does not name, each, newest first."""
    choices = {}
    for axis, package, releases in (
        (Axis.MCORE, Package.MCORE, catalog.megatron_core),
        (Axis.TE, Package.TE, catalog.transformer_engine),
        (Axis.WRITER_MCORE, Package.MCORE, catalog.megatron_core),
        (Axis.WRITER_TE, Package.TE, catalog.transformer_engine),
    ):
        own, known = cell.version(axis.value), versions_of(failure, package, releases, base, axis)
        any_ = known[::-1] if axis.value in WRITER and own == NONE else [one for one in known if one == own]
        choices[axis.value] = any_ if axis in failure.axes else [NONE]
    return (dict(zip(choices, versions, strict=True)) for versions in itertools.product(*choices.values()))


def _distance(torch: str, wanted: str) -> int:
    """Return 0 for the same torch, 1 for one of the same minor, 2 for another."""
    return 0 if torch == wanted else 1 if wanted != NONE and minor(torch) == minor(wanted) else 2
