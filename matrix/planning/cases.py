"""The possible cases: the cells of a failure, the cases of a cell, and their expectations. Pure functions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

from matrix.catalog.cell import Cell, pinned
from matrix.catalog.failure import Axis, Case, CaseNeed, Expectation, Failure, Level, Package, StandIn
from matrix.catalog.model import Base, Catalog, Image, Release, Wheels
from matrix.catalog.versions import NONE
from matrix.verdicts.planned import Planned

CLONE: Final = {
    Package.MCORE: "megatron-lm",
    Package.TE: "transformer-engine",
}  # names of the clones, as in provision.configuration


Bounds = Callable[[Mapping[str, str]], bool]  # whether a case with these values (name -> value) is wanted


def anything(values: Mapping[str, str]) -> bool:
    """Bound nothing."""
    return True


def cells_of(
    catalog: Catalog, failure: Failure, bases: Collection[str] | None = None, may: Bounds = anything
) -> list[Cell]:
    """Return the cells that differ on the failure's axes, without the excluded ones; with `bases`, those on them.

    They combine releases, the failure's builds and its open packages with the bases that tox makes and the images that
    its cases name. Those with a base or releases for which `may` returns False are left out.
    """
    made = catalog.wheels if Axis.BASE in failure.axes else catalog.readers
    named = {base for case in failure.case for base in case.bases}
    fixed = {"failure": failure.id, "driver": NONE, "sm": NONE, "gpus": NONE}
    cells = (
        catalog.cell(base.id, mcore=core, te=engine, packages=packages, writer_mcore=writer_core, writer_te=writer_te)
        for base in (*made, *(image for image in catalog.images if image.id in named))
        if bases is None or base.id in bases
        if may(of_base := {**fixed, "base": base.id, "torch": getattr(base, "torch", None) or NONE})
        for core in versions_of(failure, Package.MCORE, catalog.megatron_core, base)
        if may(of_core := {**of_base, "mcore": core})
        for engine in versions_of(failure, Package.TE, catalog.transformer_engine, base)
        if may(of_sides := {**of_core, "te": engine})
        for packages in package_sets(failure)
        for writer_core in versions_of(failure, Package.MCORE, catalog.megatron_core, base, Axis.WRITER_MCORE)
        for writer_te in versions_of(failure, Package.TE, catalog.transformer_engine, base, Axis.WRITER_TE)
        if may({**of_sides, "writer_mcore": writer_core, "writer_te": writer_te})
    )
    return [cell for cell in cells if excluded(catalog, failure, cell) is None]


def excluded(catalog: Catalog, failure: Failure, cell: Cell) -> str | None:
    """Return why a cell of the failure must not be planned, None if it may: by itself or by the cell of its writer."""
    reasons = (catalog.excluded(one, failure.overrides) for one in (cell, cell.writer) if one)
    return next(filter(None, reasons), None)


def package_sets(failure: Failure) -> list[tuple[str, ...]]:
    """Return the sets of open packages of the failure's cells, as "NAME==VERSION": one version of each name."""
    names = dict.fromkeys(one.name for one in failure.package)
    pins = [[f"{one.name}=={one.version}" for one in failure.package if one.name == name] for name in names]
    return list(itertools.product(*pins))


def picked_cells(catalog: Catalog, failure: Failure) -> list[Cell]:
    """Return the cells that a failure picks by name."""
    return [catalog.cell(pick.base, mcore=pick.mcore, te=pick.te) for pick in failure.pick]


def versions_of(
    failure: Failure, package: Package, releases: Iterable[Release], base: Base, axis: Axis | None = None
) -> list[str]:
    """Return the versions of a package for a base; only "none" where the failure does not have its axis.

    They are the releases on PyPI and the failure's builds; in an image, where clones are used, the releases in a clone.
    """
    if (axis or {Package.MCORE: Axis.MCORE, Package.TE: Axis.TE}[package]) not in failure.axes:
        return [NONE]
    cloned = isinstance(base, Image) and failure.clones
    known = [str(release.version) for release in releases if (release.revision if cloned else release.on_pypi)]
    return list(dict.fromkeys([*known, *failure.builds(package)]))


def run_in(catalog: Catalog, failure: Failure, cell: Cell, levels: Collection[Level]) -> Iterable[tuple[Case, Level]]:
    """Yield the cases of a cell at each of `levels` that they have; level contract runs only outside of images."""
    image = isinstance(catalog.base(cell.base), Image)
    picks = zip(failure.pick, picked_cells(catalog, failure), strict=True)
    picked = {name for pick, its in picks if its == cell for name in pick.cases}
    for case in failure.case:
        here = (
            is_complete(failure, case, cell)
            and case.is_for(cell)
            and (cell.base in case.bases if case.bases else not image)
        )
        here = here and (case.name in picked or not case.picked)
        for level in case.levels:
            if level in levels and (not image if level is Level.CONTRACT else here):
                yield case, level


def is_complete(failure: Failure, case: Case, cell: Cell) -> bool:
    """Return whether the cell names the writer of the checkpoint that the case reads, and the failure's packages."""
    return (
        bool(case.write) == bool(cell.writer) and {one.name for one in failure.package} <= pinned(cell.packages).keys()
    )


def plan_case(
    catalog: Catalog, failure: Failure, case: Case, level: Level, cell: Cell, *, compiled: bool = False
) -> Planned:
    """Return the case with its expectation and notes from the catalog."""
    notes = []
    base = catalog.bases.get(cell.base)
    if isinstance(base, Wheels) and (images := catalog.twins_of(base)):
        notes.append(f"twin of {', '.join(image.id for image in images)}")
    if stand_in := stand_in_of(failure, case, level, cell):
        absent = " where absent" if level is Level.GPU else ""
        notes.append(f"stand-in{absent}: {', '.join(stand_in.packages)} ({stand_in.reason})")
    if cell.te != NONE and level is Level.CPU and not compiled:
        from matrix.kit import te_extension  # 0.04 s: `check` and `match` do not need it

        notes.append(te_extension.NOTE)
    return Planned(
        cell,
        failure.id,
        case.name,
        level,
        failure.expectation(cell, case.name),
        True,
        case.ranks,
        case.gpus,
        case.launcher,
        (*case.packages, *laid(failure, cell)),
        failure.overrides,
        source=source_of(failure, Package.MCORE, catalog.megatron_core, cell.mcore, level),
        te_source=source_of(failure, Package.TE, catalog.transformer_engine, cell.te, level),
        compiled=compiled,
        notes=tuple(notes),
    )


def laid(failure: Failure, cell: Cell) -> tuple[str, ...]:
    """Return the open packages of a cell with those that they require, as "NAME==VERSION"."""
    required = {f"{one.name}=={one.version}": one.requires for one in failure.package}
    return tuple(pin for package in cell.packages for pin in (package, *required.get(package, ())))


def stand_in_of(failure: Failure, case: Case, level: Level, cell: Cell) -> StandIn | None:
    """Return the stand-in of a case where it runs; a case that needs the real packages has none."""
    if level is Level.CONTRACT or CaseNeed.COMPILED_TE in case.needs:
        return None
    return failure.stand_in_for(cell)


def on_python(catalog: Catalog, item: Planned, python: str) -> Planned:
    """Return a case in the cell of an environment with this minor of Python, which may not be the base's first.

    An expectation that is not the catalog's (of --expect or --break) stays.
    """
    if item.cell.python in (python, NONE):
        return item
    base, failure = catalog.bases.get(item.cell.base), catalog.failure(item.failure)
    provided = base.provided(python) if isinstance(base, Wheels) else item.cell.provided
    cell = replace(item.cell, python=python, provided=provided)
    claimed = item.expectation is failure.expectation(item.cell, item.case)
    return replace(item, cell=cell, expectation=failure.expectation(cell, item.case) if claimed else item.expectation)


def source_of(failure: Failure, package: Package, releases: Iterable[Release], version: str, level: Level) -> str:
    """Return the source of a version that is not from PyPI: its build, or its tag in a clone; "" for PyPI."""
    build = failure.builds(package).get(version)
    if build:
        return build.source
    if failure.clones and level is not Level.CONTRACT:
        for release in releases:
            if release.version == version and release.revision:
                return f"{CLONE[package]}@{release.revision}"
    return ""


def revisions(catalog: Catalog) -> dict[str, tuple[str, ...]]:
    """Return the revisions that cases may need of each clone: builds, and tags of releases where clones are used."""
    found: dict[str, set[str]] = {name: set() for name in CLONE.values()}
    for failure in catalog.failures:
        for build in failure.build:
            name, _, revision = build.source.partition("@")
            found[name].add(revision)
    if any(failure.clones for failure in catalog.failures):
        for package, releases in ((Package.MCORE, catalog.megatron_core), (Package.TE, catalog.transformer_engine)):
            found[CLONE[package]] |= {release.revision for release in releases if release.revision}
    return {name: tuple(sorted(names)) for name, names in found.items()}


def masked_by(catalog: Catalog, failure: Failure, cell: Cell, case: str = "") -> str | None:
    """Return why `case` is masked in `cell`, None if it is not; without a case, why every one is masked."""
    for masked in failure.masked:
        applies = not masked.cases or case in masked.cases
        if applies and masked.when.matches(cell) and catalog.failure(masked.by).expectation(cell) is Expectation.BROKEN:
            return f"{masked.by}: {masked.reason}"
    return None


def expected(catalog: Catalog, failure: Failure, cell: Cell, case: Case) -> Expectation:
    """Return the catalog's expectation of a case in a cell; UNKNOWN for one that is masked or not for the cell."""
    unreachable = not case.is_for(cell) or masked_by(catalog, failure, cell, case.name)
    return Expectation.UNKNOWN if unreachable else failure.expectation(cell, case.name)
