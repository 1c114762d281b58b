"""The possible cases: the cells of a failure, the cases of a cell, and their expectations. Pure functions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

from matrix.ground.catalog.failure import Case, CaseNeed, Expectation, Failure, Level, Pick, StandIn
from matrix.ground.catalog.model import Base, Catalog, Image, ReaderBase, Wheels
from matrix.ground.catalog.stack import (
    ABSENT,
    BASE,
    DRIVER,
    GPUS,
    MCORE,
    PYTHON,
    SM,
    TE,
    TORCH,
    WRITER,
    WRITER_MCORE,
    WRITER_TE,
    Cell,
    Stack,
    Value,
)
from matrix.ground.verdicts.planned import Planned

CLONE: Final = {MCORE: "megatron-lm", TE: "transformer-engine"}  # the clone of a package, as in provision.host
TE_STAND_IN: Final = "stand-in: Transformer Engine's compiled extension"  # a note of a case (kit.te_extension)
VARIED: Final = (MCORE, TE, WRITER_MCORE, WRITER_TE)  # the components whose releases the cells of a failure combine


# Whether a case with these values is wanted: those of components, and of failure, case, level and base.
Bounds = Callable[[Mapping[str, Value]], bool]


def accept_all(values: Mapping[str, Value]) -> bool:
    """Bound nothing."""
    return True


def cells_of(
    catalog: Catalog, failure: Failure, bases: Collection[str] | None = None, may: Bounds = accept_all
) -> list[Cell]:
    """Return the cells that differ on the failure's axes, without the excluded ones; with `bases`, those on them.

    They combine releases, the failure's builds and its open packages with the bases of wheels and the images that
    its cases name. A call is read without torch, too. Those with a base or releases for which `may` returns False are
    left out.
    """
    running_bases = catalog.made if failure.contract else catalog.wheels
    made_bases = running_bases if BASE in failure.axes else catalog.readers
    case_bases = {base for case in failure.case for base in case.bases}
    fixed: dict[str, Value] = {"failure": failure.id, DRIVER: ABSENT, SM: ABSENT, GPUS: ABSENT}
    cells = []
    for base in (*made_bases, *(image for image in catalog.images if image.id in case_bases)):
        of_base = {**fixed, "base": base.id, TORCH: base.contents()[TORCH]}
        if (bases is not None and base.id not in bases) or not may(of_base):
            continue
        combinations: list[dict[str, Value]] = [{}]
        for component in VARIED:
            versions = versions_of(catalog, failure, component, base)
            combinations = [{**values, component: version} for values in combinations for version in versions]
            combinations = [values for values in combinations if may({**of_base, **values})]
        for values, packages in itertools.product(combinations, package_sets(failure)):
            cells.append(catalog.cell(base.id, {**values, **packages}, packages))
    return [cell for cell in cells if excluded(catalog, failure, cell) is None]


def excluded(catalog: Catalog, failure: Failure, cell: Cell) -> str | None:
    """Return why a cell of the failure must not be planned, None if it may: by itself or by the cell of its writer."""
    reasons = (catalog.excluded(side.stack, failure.overrides) for side in (cell, cell.writer) if side)
    return next(filter(None, reasons), None)


def package_sets(failure: Failure) -> list[dict[str, Value]]:
    """Return the sets of open packages of the failure's cells, name -> version: one version of each name."""
    names = dict.fromkeys(package.name for package in failure.package)
    versions = [[package.version for package in failure.package if package.name == name] for name in names]
    return [dict(zip(names, combination, strict=True)) for combination in itertools.product(*versions)]


def picked_cells(catalog: Catalog, failure: Failure) -> list[Cell]:
    """Return the cells that a failure picks by name."""
    return [catalog.cell_named(pick) for pick in failure.pick]


def versions_of(catalog: Catalog, failure: Failure, component: str, base: Base) -> list[Value]:
    """Return the versions of a package, or of its writer's, for a base; only ABSENT where the failure lacks the axis.

    They are the releases on PyPI and the failure's builds; in an image, where clones are used, the releases in a clone.
    """
    if component not in failure.axes:
        return [ABSENT]
    package = WRITER.get(component, component)
    cloned = isinstance(base, Image) and failure.clones
    releases = catalog.releases(package)
    released = [str(release.version) for release in releases if (release.revision if cloned else release.on_pypi)]
    return list(dict.fromkeys([*released, *failure.builds(package)]))


def run_in(catalog: Catalog, failure: Failure, cell: Cell, levels: Collection[Level]) -> Iterable[tuple[Case, Level]]:
    """Yield the cases of a cell at each of `levels` that they have; level contract runs only outside of images.

    A base without torch has no other level.
    """
    image, reader = (isinstance(catalog.base(cell.base), kind) for kind in (Image, ReaderBase))
    for case in failure.case:
        runs = (
            (cell.base in case.bases if case.bases else not image and not reader)
            and is_complete(failure, case, cell)
            and case.is_for(cell.stack)
            and (not case.picked or any(_picks(catalog, pick, case, cell) for pick in failure.pick))
        )
        for level in case.levels:
            if level in levels and (not image if level is Level.CONTRACT else runs):
                yield case, level


def _picks(catalog: Catalog, pick: Pick, case: Case, cell: Cell) -> bool:
    return case.name in pick.cases and pick.base == cell.base and catalog.cell_named(pick) == cell


def is_complete(failure: Failure, case: Case, cell: Cell) -> bool:
    """Return whether the cell names the writer of the checkpoint that the case reads, and the failure's packages."""
    return bool(case.write) == bool(cell.writer) and all(package.name in cell.packages for package in failure.package)


def plan_case(
    catalog: Catalog, failure: Failure, case: Case, level: Level, cell: Cell, *, compiled: bool = False
) -> Planned:
    """Return the case with its expectation and notes from the catalog."""
    notes = []
    base = catalog.find_base(cell.base)
    if isinstance(base, Wheels) and (images := catalog.twins_of(base)):
        notes.append(f"twin of {', '.join(image.id for image in images)}")
    if stand_in := stand_in_of(failure, case, level, cell):
        absent = " where absent" if level is Level.GPU else ""
        notes.append(f"stand-in{absent}: {', '.join(stand_in.packages)} ({stand_in.reason})")
    if cell.stack.version(TE) and level is Level.CPU and not compiled:
        notes.append(TE_STAND_IN)
    return Planned(
        cell,
        failure.id,
        case.name,
        level,
        _claim(catalog, failure, cell.stack, case.name),
        True,
        case.ranks,
        case.gpus,
        case.launcher,
        (*case.packages, *required_pins(failure, cell)),
        failure.overrides,
        source=source_of(catalog, failure, MCORE, cell.stack, level),
        te_source=source_of(catalog, failure, TE, cell.stack, level, built=isinstance(base, Wheels) and not compiled),
        compiled=compiled,
        notes=tuple(notes),
    )


def required_pins(failure: Failure, cell: Cell) -> tuple[str, ...]:
    """Return the open packages of a cell with those that they require, as "NAME==VERSION"."""
    required = {f"{package.name}=={package.version}": package.requires for package in failure.package}
    return tuple(pin for package in cell.pins for pin in (package, *required.get(package, ())))


def stand_in_of(failure: Failure, case: Case, level: Level, cell: Cell) -> StandIn | None:
    """Return the stand-in of a case where it runs; a case that needs the real packages has none."""
    if level is Level.CONTRACT or CaseNeed.COMPILED_TE in case.needs:
        return None
    return failure.stand_in_for(cell.stack)


def on_python(catalog: Catalog, item: Planned, python: str) -> Planned:
    """Return a case in the cell of an environment with this minor of Python, which may not be the base's first.

    An expectation that is not the catalog's (of --expect or --break) stays.
    """
    cell, base = item.cell, catalog.find_base(item.cell.base)
    if cell.stack.version(PYTHON) in (python, None) or not isinstance(base, Wheels):
        return item
    failure = catalog.failure(item.failure)
    provided = base.contents(str(cell.stack[PYTHON]))
    values = {name: value for name, value in cell.stack.components.items() if provided[name] != value}
    moved = replace(cell, stack=Stack(values).over(base.contents(python)))
    claimed = item.expectation is _claim(catalog, failure, cell.stack, item.case)
    expectation = _claim(catalog, failure, moved.stack, item.case) if claimed else item.expectation
    return replace(item, cell=moved, expectation=expectation)


def source_of(
    catalog: Catalog, failure: Failure, package: str, stack: Stack, level: Level, *, built: bool = False
) -> str:
    """Return the source of a version that is not from PyPI: its build, or its tag in a clone; "" for PyPI.

    `built`: a base that builds the compiled part of a release, which level gpu needs, from PyPI.
    """
    version = stack[package]
    build = failure.builds(package).get(str(version))
    if build:
        return build.source
    if failure.clones and level is not Level.CONTRACT:
        for release in catalog.releases(package):
            released = built and level is Level.GPU and release.on_pypi
            if release.version == version and release.revision and not released:
                return f"{CLONE[package]}@{release.revision}"
    return ""


def revisions(catalog: Catalog) -> dict[str, tuple[str, ...]]:
    """Return the revisions that cases may need of each clone: builds, and tags of releases where clones are used."""
    by_clone: dict[str, set[str]] = {name: set() for name in CLONE.values()}
    for failure in catalog.failures:
        for build in failure.build:
            name, _, revision = build.source.partition("@")
            by_clone[name].add(revision)
    if any(failure.clones for failure in catalog.failures):
        for package, clone in CLONE.items():
            by_clone[clone] |= {release.revision for release in catalog.releases(package) if release.revision}
    return {name: tuple(sorted(names)) for name, names in by_clone.items()}


def masked_by(catalog: Catalog, failure: Failure, stack: Stack, case: str = "") -> str | None:
    """Return why `case` is masked in a stack, None if it is not; without a case, why every one is masked."""
    for masked in failure.masked:
        applies = not masked.cases or case in masked.cases
        hides = applies and masked.when.matches(stack)
        if hides and catalog.failure(masked.by).expectation(stack) is Expectation.BROKEN:
            return f"{masked.by}: {masked.reason}"
    return None


def expected(catalog: Catalog, failure: Failure, stack: Stack, case: Case) -> Expectation:
    """Return the catalog's expectation of a case in a stack; UNKNOWN for one that is masked or not for the stack."""
    return _claim(catalog, failure, stack, case.name) if case.is_for(stack) else Expectation.UNKNOWN


def _claim(catalog: Catalog, failure: Failure, stack: Stack, case: str) -> Expectation:
    """Return the catalog's expectation of a case; UNKNOWN for one that is masked: it ends in what hides it."""
    hidden = masked_by(catalog, failure, stack, case)
    return Expectation.UNKNOWN if hidden else failure.expectation(stack, case)
