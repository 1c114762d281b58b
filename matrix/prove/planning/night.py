"""Every case of the matrix, and the choice of the night, with reasons. Pure: no process, clock or network."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from matrix.ground.cases.cells import (
    Bounds,
    accept_all,
    cells_of,
    expected,
    masked_by,
    picked_cells,
    plan_case,
    run_in,
    versions_of,
)
from matrix.ground.cases.machine_requirements import possible
from matrix.ground.catalog.failure import Case, CaseNeed, Expectation, Failure, Level, NightShare
from matrix.ground.catalog.model import Catalog, Container, Image, ReaderBase
from matrix.ground.catalog.schema import Identifier
from matrix.ground.catalog.stack import (
    ABSENT,
    BASE,
    MCORE,
    PYTHON,
    TE,
    TORCH,
    WRITER,
    WRITER_MCORE,
    WRITER_TE,
    Cell,
    Stack,
    Value,
    parse_cell_id,
    short,
)
from matrix.ground.catalog.versions import minor, parse, position
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.planned import Planned, Reason, ReasonKind

SMOKE: Final = 5  # failures in a smoke: its ten cases took a second each, at level cpu with the environments made
ANY_LINE: Final = "*"  # the minor of an installed Transformer Engine that is unknown
REPORT: Final = Identifier("report")  # the case of a stack whose failure has no reproduction yet


def everything(catalog: Catalog, levels: Collection[Level], may: Bounds = accept_all) -> list[Planned]:
    """Return every case on every possible cell, masked ones included, at the given levels.

    Where `may` returns False for some values of a case, such cases are left out, most of them before they are made.
    """
    planned = []
    for failure in catalog.failures:
        of_failure: dict[str, Value] = {"failure": failure.id}
        cases = {
            (case.name, level)
            for case in failure.case
            for level in case.levels
            if level in levels and may({**of_failure, "case": case.name, "level": level.value})
        }
        if cases:
            planned += [
                plan_case(catalog, failure, case, level, cell)
                for cell in dict.fromkeys([*cells_of(catalog, failure, may=may), *picked_cells(catalog, failure)])
                for case, level in run_in(catalog, failure, cell, levels)
                if (case.name, level) in cases
            ]
    return planned


def of_base(
    catalog: Catalog,
    base: str,
    levels: Collection[Level],
    *,
    core: str | None = None,
    engine: str | None = None,
    te_line: str = "",
    compiled: Collection[str] = (),
) -> list[Planned]:
    """Return the cases that an environment with base `base` runs: every case that is not masked.

    `core` is the installed megatron-core; without one, the cases use the newest patch of each minor. `engine` is the
    installed Transformer Engine. `te_line` ("1.9") selects the cells of that minor instead of the installed one's,
    ANY_LINE those of each; the releases `compiled`, of a bundle, are added. For a base that only reads, and for an
    image, the cells are those of the night.
    """
    nightly = isinstance(catalog.bases.get(base), (ReaderBase, Image))
    planned = []
    for failure in catalog.failures:
        if nightly:
            cells = [*night_cells(catalog, failure), *picked_cells(catalog, failure)]
        else:
            cells = cells_of(catalog, failure, [base])  # all bases have a hundred thousand cells
        # Of writers and readers, only the pairs with a claim: all pairs would be hundreds.
        cells = [
            cell
            for cell in cells
            if cell.base == base
            and core in (None, cell.stack[MCORE])
            and (not cell.writer or claimed(catalog, failure, cell.stack))
        ]
        if not nightly:
            cells = _with_engine(cells, engine, te_line, compiled)
        if core and not cells and TE not in failure.axes:
            cells = [catalog.cell(base, {MCORE: core})]  # a build that is no release: NGC's, or a local one
        planned += [
            plan_case(catalog, failure, case, level, cell)
            for cell in newest_patches(cells)
            for case, level in run_in(catalog, failure, cell, levels)
            if not masked_by(catalog, failure, cell.stack, case.name)
        ]
    return planned


def _with_engine(cells: Sequence[Cell], engine: str | None, te_line: str, compiled: Collection[str]) -> list[Cell]:
    """Return the cells of one minor of Transformer Engine, with the installed version of it, of these, and of none.

    The minor is `te_line`, or that of `engine`, the installed version. An installed build of NGC's, and its minor, are
    in no list of releases: it replaces the release of each cell.
    """
    line = te_line or (minor(engine) if engine else "")
    if engine and minor(engine) == line:
        unchanged = (None, *compiled)
        cells = [
            *dict.fromkeys(cell if cell.stack.version(TE) in unchanged else cell.with_({TE: engine}) for cell in cells)
        ]
    engines = ((cell, cell.stack.version(TE)) for cell in cells)
    return [cell for cell, te in engines if not te or te in compiled or line in (ANY_LINE, minor(te))]


def of_source(
    catalog: Catalog, source: str, version: str, expectation: Expectation | None, levels: Collection[Level]
) -> list[Planned]:
    """Return every case of the night's bases with megatron-core from `source` instead of a release.

    `expectation` is the one that the user gives (works, to gate a fix); None takes the catalog's for `version`.
    """
    cases = [
        plan_case(catalog, failure, case, level, catalog.cell(base.id, {MCORE: version}))
        for base in catalog.wheels
        if base.night
        for failure in catalog.failures
        if MCORE in failure.axes
        and TE not in failure.axes  # such a case needs a Transformer Engine that fits the source
        for case, level in run_in(catalog, failure, catalog.cell(base.id, {MCORE: version}), levels)
    ]
    return [
        replace(
            item, source=source, expectation=expectation or item.expectation, why=(Reason(ReasonKind.SOURCE, source),)
        )
        for item in cases
    ]


def of_key(
    catalog: Catalog, key: str, sources: Mapping[str, str], expectation: Expectation | None, *, compiled: bool = False
) -> Planned:
    """Return the case of a key "CELL FAILURE CASE LEVEL"; `sources` are source, te_source and writer_source of it.

    Raises MatrixError for a key of another form, and for an unknown base, failure or case.
    """
    words = key.split(" ")
    if len(words) != 4 or words[3] not in [level.value for level in Level]:
        raise MatrixError("not the key of a case", got=key, expected="CELL FAILURE CASE LEVEL")
    failure, level = catalog.failure(words[1]), Level(words[3])
    case = next((case for case in failure.case if case.name == words[2] and level in case.levels), None)
    if case is None:
        raise MatrixError("no such case", got=key, expected=f"a case of {failure.id} at level {level.value}")
    item = plan_case(catalog, failure, case, level, catalog.cell(**parse_cell_id(words[0])), compiled=compiled)
    fields: dict[str, Any] = dict(sources)
    why = tuple(Reason(ReasonKind.SOURCE, source) for source in sources.values())
    return replace(item, **fields, expectation=expectation or item.expectation, why=why)


Pairwise = Callable[
    [Mapping[str, Sequence[Any]], Sequence[str], Callable[[Mapping[str, Any]], bool]], list[dict[str, Any]]
]


def night(
    catalog: Catalog, pairwise: Pairwise, levels: Collection[Level] = (Level.CONTRACT, Level.CPU)
) -> list[Planned]:
    """Return the cases of a night: the reports' stacks, the boundary of every failure, and a covering array.

    At level gpu also those of images, which have a compiled Transformer Engine that is no release.

    The bases are those that bases.toml marks for the night, the megatron-core releases the newest patch of each minor.
    Each case has the reasons for its choice. `pairwise` makes the covering array.
    """
    by_key: dict[str, Planned] = {}
    candidates = [*stack_cases(catalog, levels)]
    for failure in catalog.failures:
        cells = night_cells(catalog, failure)
        boundary = boundary_cases(catalog, cells, failure)
        picked = picked_cases(catalog, failure)
        wheels = [*boundary, *covering_cases(catalog, cells, failure, pairwise), *picked]
        images = [*image_cases(catalog, failure)] if Level.GPU in levels else []
        for choices, at in ((wheels, levels), (images, (Level.GPU,))):
            candidates += [
                (planned, why)
                for cell, names, why in choices
                for case, level in run_in(catalog, failure, cell, at)
                if case.name in names and possible(catalog, planned := plan_case(catalog, failure, case, level, cell))
            ]
    for planned, why in candidates:
        merged = by_key.get(planned.key, planned)
        if why not in merged.why:
            by_key[planned.key] = replace(merged, why=(*merged.why, why))
    order = {base: index for index, base in enumerate(catalog.bases)}
    return sorted(
        by_key.values(),
        key=lambda item: (
            order[item.cell.base],
            item.failure,
            position(item.cell.stack[MCORE]),
            str(item.cell.stack[TE]),
            item.case,
        ),
    )


def needs(catalog: Catalog, item: Planned) -> tuple[CaseNeed, ...]:
    """Return what a case needs of its machine or base, such as a clone."""
    return catalog.failure(item.failure).case_named(item.case).needs


def smoke(catalog: Catalog, planned: Sequence[Planned], bases: int) -> list[Planned]:
    """Return a part of a night that turns red in both directions, on its `bases` smallest environments.

    Of SMOKE failures with different topics a broken and a working case on one base, the bases in turn, and of a base
    without such a failure one case: cases that need no clone and nothing else, those of fewer ranks first.
    """
    sizes: dict[str, float] = {base.id: base.disk_gb for base in catalog.wheels if base.disk_gb}
    usable = [
        item
        for item in planned
        if item.reproducible and not (item.source or item.te_source or item.writer_source or needs(catalog, item))
    ]
    kept = sorted({item.cell.base for item in usable} & sizes.keys(), key=lambda base: sizes[base])[:bases]
    sides: dict[tuple[str, str], dict[Expectation, Planned]] = {}
    for item in sorted(usable, key=lambda item: item.ranks):
        sides.setdefault((item.cell.base, item.failure), {}).setdefault(item.expectation, item)
    chosen: dict[str, tuple[str, str]] = {}  # by topic
    topic = {place: catalog.failure(place[1]).topic or place[1] for place, pair in sides.items() if len(pair) > 1}
    while len(chosen) < SMOKE and (left := [at for at in topic if at[0] in kept and topic[at] not in chosen]):
        turns = Counter(base for base, _ in chosen.values())
        at = min(left, key=lambda at: (turns[at[0]], kept.index(at[0])))
        chosen[topic[at]] = at
    first = {at[0]: at for at in reversed(sides) if at[0] in kept}
    places = {**first, **{at[0]: at for at in chosen.values()}}.values()
    keys = {item.key for at in (*chosen.values(), *places) for item in sides[at].values()}
    return [item for item in planned if item.key in keys]


def image_cases(catalog: Catalog, failure: Failure) -> Iterable[Choice]:
    """Yield, for each case in each image of the night, the last bad and the first good megatron-core, or the newest.

    Of a failure without `affected`, every megatron-core, whatever is known of it: a gate. A failure that depends on
    Transformer Engine uses the image's own. Where a failure has a share of the night, its releases apply, and unless it
    depends on Transformer Engine also its bases: to the images that they are twins of.
    """
    share = failure.night
    bases = share.bases if share and TE not in failure.axes else ()
    shared = share.releases.get(MCORE) if share else ()
    twins = {image.id for base in catalog.wheels if base.id in bases for image in catalog.twins_of(base)}
    for image in catalog.containers:
        if not image.night or (bases and image.id not in twins):
            continue
        te = image.te if TE in failure.axes else ABSENT
        cells = [
            catalog.cell(image.id, {MCORE: core, TE: te})
            for core in versions_of(catalog, failure, MCORE, image)
            if te and (not shared or core in shared)
        ]
        cells = newest_patches(cell for cell in cells if catalog.excluded(cell.stack) is None)
        for case in (case for case in failure.case if Level.GPU in case.levels):
            sides = [(cell, expected(catalog, failure, cell.stack, case)) for cell in cells]
            sides = [(cell, side) for cell, side in sides if side is not Expectation.UNKNOWN or not failure.affected]
            changes = [pair for pair in itertools.pairwise(sides) if pair[0][1] is not pair[1][1] and failure.affected]
            for (cell, was), (newer, becomes) in changes:
                change = Reason(
                    ReasonKind.BOUNDARY, f"mcore {cell.stack[MCORE]} {was.value} | {newer.stack[MCORE]} {becomes.value}"
                )
                yield cell, frozenset({case.name}), change
                yield newer, frozenset({case.name}), change
            others = sides[-1:] if failure.affected else sides
            for cell, _ in () if changes else others:
                yield cell, frozenset({case.name}), Reason(ReasonKind.PICKED, f"{image.id} {image.night}")


def night_cells(catalog: Catalog, failure: Failure) -> list[Cell]:
    """Return the cells on the night's bases in which some case has an expectation."""
    share = failure.night or NightShare("")
    bases = {base.id for base in catalog.made if base.night and (not share.bases or base.id in share.bases)}
    cells = cells_of(catalog, failure, bases)
    cells = [cell for cell in cells if all(_shared(failure, share, side.stack) for side in (cell, cell.writer) if side)]
    return [cell for cell in newest_patches(cells) if claimed(catalog, failure, cell.stack)]


def _shared(failure: Failure, share: NightShare, stack: Stack) -> bool:
    """Return whether the releases of a stack are in the failure's share of the night."""
    return all(stack[name] in {*releases, *failure.builds(name)} for name, releases in share.releases.items())


def claimed(catalog: Catalog, failure: Failure, stack: Stack) -> bool:
    """Return whether some case has an expectation in the stack."""
    return any(expected(catalog, failure, stack, case) is not Expectation.UNKNOWN for case in failure.case)


def newest_patches(cells: Iterable[Cell]) -> list[Cell]:
    """Return, for each base, TE, set of packages and megatron-core minor (of the writer, too), the newest patch.

    Builds with a local version are not releases: each is kept.
    """
    newest: dict[tuple[object, ...], Cell] = {}
    patched = (MCORE, WRITER_MCORE)
    for cell in sorted(cells, key=lambda cell: [position(cell.stack[name]) for name in patched]):
        lines = tuple(_line(cell.stack[name]) for name in patched)
        newest[cell.base, lines, cell.stack[TE], cell.stack[WRITER_TE], cell.pins] = cell
    return list(newest.values())


def _line(version: Value) -> Value:
    return minor(version) if isinstance(version, str) and "+" not in version else version


Choice = tuple[Cell, frozenset[str], Reason]  # a cell, the names of the cases to run there, and the reason


def covering_cases(catalog: Catalog, cells: Sequence[Cell], failure: Failure, pairwise: Pairwise) -> Iterable[Choice]:
    """Yield a pairwise covering array of base x megatron-core x TE x case, and what else the failure's cells name."""
    if not cells or not failure.case:
        return
    values = {cell: _factors(cell) for cell in cells}
    axes = [axis for axis in values[cells[0]] if axis in ALWAYS or any(row[axis] for row in values.values())]
    allowed = {
        (*(values[cell][axis] for axis in axes), case.name): cell
        for cell in cells
        for case in failure.case
        if expected(catalog, failure, cell.stack, case) is not Expectation.UNKNOWN
    }
    factors: dict[str, Sequence[Any]] = {
        axis: list(dict.fromkeys(row[axis] for row in values.values())) for axis in axes
    }
    factors["case"] = [case.name for case in failure.case]
    keys = (*axes, "case")
    for row in pairwise(factors, keys, lambda row: tuple(row[key] for key in keys) in allowed):
        yield (
            allowed[tuple(row[key] for key in keys)],
            frozenset({row["case"]}),
            Reason(ReasonKind.PAIRWISE, " x ".join(keys)),
        )


ALWAYS: Final = ("base", "mcore", "te", "case")  # factors of each covering array


def _factors(cell: Cell) -> dict[str, Any]:
    """Return what a covering array of cells combines: the base, and the packages that are laid over it."""
    versions = {short(name): cell.stack[name] for name in (MCORE, TE)}
    writer = {short(name): cell.stack.version(name) for name in WRITER}
    return {"base": cell.base, **versions, **writer, "packages": cell.pins}


def picked_cases(catalog: Catalog, failure: Failure) -> Iterable[Choice]:
    """Yield the cells that a failure picks by name, with the cases that have an expectation there."""
    for pick, cell in zip(failure.pick, picked_cells(catalog, failure), strict=True):
        names = {
            case.name
            for case in failure.case
            if (not pick.cases or case.name in pick.cases)
            and expected(catalog, failure, cell.stack, case) is not Expectation.UNKNOWN
        }
        yield cell, frozenset(names), Reason(ReasonKind.PICKED, pick.reason)


def stack_cases(catalog: Catalog, levels: Collection[Level]) -> Iterable[tuple[Planned, Reason]]:
    """Yield the stacks of the founding reports as cases, with reasons.

    On a wheels base at each of `levels`; in an image, which is the reported environment, at the case's highest level.
    """
    for failure, report in ((entry, report) for entry in catalog.failures for report in entry.stack):
        cell = catalog.cell_named(report.cell)
        image = isinstance(catalog.base(cell.base), Container)
        runs = [*run_in(catalog, failure, cell, tuple(Level) if image else levels)]
        if not failure.case:
            runs = [(Case(REPORT, (Level.GPU,), ranks=report.gpus, gpus=report.gpus), Level.GPU)]
        if image:
            runs = most_real(runs)
        for case, level in runs:
            if not masked_by(catalog, failure, cell.stack, case.name):
                case_of_report = plan_case(catalog, failure, case, level, cell)
                planned = replace(case_of_report, gpus=report.gpus, reproducible=bool(failure.case))
                yield planned, Reason(ReasonKind.STACK, f"{report.name}: {report.text}")


def most_real(found: Sequence[tuple[Case, Level]]) -> list[tuple[Case, Level]]:
    """Return the cases at the highest level (contract, cpu, gpu) among them."""
    best = max((level for _, level in found), key=list(Level).index)
    return [(case, level) for case, level in found if level is best]


def boundary_cases(catalog: Catalog, cells: Sequence[Cell], failure: Failure) -> Iterable[Choice]:
    """Yield the last bad and the first good cell on each axis, with the cases whose expectation changes there.

    Neighbours are adjacent among the values that `cells` have on one axis, with the other axes equal.
    """
    axes = (TORCH, MCORE, TE, *WRITER, *failure.open)
    fixed = (TORCH, PYTHON, BASE)
    provided = {
        base: frozenset(pin for pin in catalog.base(base).contents().versions.items() if pin[0] not in fixed)
        for base in {cell.base for cell in cells}
    }
    for axis in axes:
        lines: dict[tuple[object, ...], list[Cell]] = {}
        for cell in cells:
            if cell.stack.version(axis):
                # The torch of a variant base is the standard one's; its other packages are not.
                other_axes = tuple(cell.stack[name] for name in axes if name != axis)
                lines.setdefault((other_axes, axis != TORCH or provided[cell.base]), []).append(cell)
        for line in lines.values():
            ordered = sorted(
                ((parse(str(cell.stack[axis])), cell) for cell in line), key=lambda pair: (pair[0], pair[1].base)
            )
            for (lower, lower_cell), (upper, upper_cell) in itertools.pairwise(ordered):
                changes: dict[tuple[Expectation, Expectation], set[str]] = {}
                for case in failure.case:
                    sides = (
                        expected(catalog, failure, lower_cell.stack, case),
                        expected(catalog, failure, upper_cell.stack, case),
                    )
                    if sides[0] is not sides[1] and Expectation.UNKNOWN not in sides:
                        changes.setdefault(sides, set()).add(case.name)
                for (was, becomes), names in changes.items():
                    change = Reason(ReasonKind.BOUNDARY, f"{short(axis)} {lower} {was.value} | {upper} {becomes.value}")
                    yield lower_cell, frozenset(names), change
                    yield upper_cell, frozenset(names), change


def pairwise(
    factors: Mapping[str, Sequence[Any]], keys: Sequence[str], allowed: Callable[[Mapping[str, Any]], bool]
) -> list[dict[str, Any]]:
    """Return allowed rows that cover every pair of values of any allowed row.

    `allowed` uses only the `keys` of a row. The order of the rows is fixed: the same input gives the same plan.
    Raises MatrixError without covertable: the Python of an image, on which a checkout plans, may lack it.
    """
    try:  # only the planner needs it; cells do not have it
        from covertable.main import Controller  # type: ignore[import-untyped]  # it has no stubs
    except ModuleNotFoundError:
        raise MatrixError(
            "covertable is needed to plan a night", got=f"no covertable in {sys.prefix}", fix="pip install covertable"
        ) from None
    rule = {"operator": "fn", "requires": list(keys), "evaluate": allowed}
    rows = Controller({name: list(values) for name, values in factors.items()}, constraints=[rule]).make()
    return sorted(
        (dict(row) for row in rows), key=lambda row: [list(factors[name]).index(row[name]) for name in factors]
    )
