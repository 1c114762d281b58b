"""The lines of the catalog: a minor version of Transformer Engine, or a base; and what of a line is run at a desk.

te19         Transformer Engine 1.9 on the twin of the image that shipped it
torch2.4.0   the base torch-2.4.0

Pure functions of the catalog and a planned night.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.version import Version

from matrix.ground.cases.cells import cells_of, expected, picked_cells, plan_case, run_in
from matrix.ground.cases.machine_requirements import possible
from matrix.ground.catalog.failure import Expectation, Failure, Level
from matrix.ground.catalog.model import Catalog, Container, ReaderBase, Wheels
from matrix.ground.catalog.stack import ABSENT, MCORE, TE, TORCH, WRITER_MCORE, Cell
from matrix.ground.catalog.versions import minor, parse, position
from matrix.ground.errors import MatrixError, closest
from matrix.ground.verdicts.planned import Planned, Reason, ReasonKind
from matrix.prove.planning.night import newest_patches, of_base


@dataclass(frozen=True)
class Line:
    """A line by the name that people type. `te` is a minor version of Transformer Engine, "" for a base's own line."""

    name: str
    base: Wheels | ReaderBase
    te: str
    description: str

    def has(self, cell: Cell) -> bool:
        """Return whether a cell has the line's Transformer Engine; any cell for a base's line."""
        te = cell.stack.version(TE)
        return not self.te or bool(te and minor(te) == self.te)


def lines(catalog: Catalog) -> dict[str, Line]:
    """Return the lines by name; that of a base is its id without the first hyphen: torch-2.4.0 -> torch2.4.0."""
    own = (Line(base.id.replace("-", "", 1), base, "", f"what torch decides, on {base.id}") for base in catalog.made)
    return {line.name: line for line in (*_te_lines(catalog), *own)}


def named(catalog: Catalog, name: str) -> Line:
    """Return the line of this name. Raises MatrixError."""
    if name not in (by_name := lines(catalog)):
        raise MatrixError("no such line", got=name, fix=closest(name, by_name))
    return by_name[name]


def shipped_by(catalog: Catalog) -> Mapping[str, Container | None]:
    """Return each minor version of Transformer Engine with the newest image that ships it, None where none is known."""
    # Sorted by id, NeMo's images come before NGC's PyTorch, so the latter wins where it is known.
    shipped = {
        minor(image.te): image for image in sorted(catalog.containers, key=lambda container: container.id) if image.te
    }
    minors = sorted({minor(release.version) for release in catalog.transformer_engine}, key=parse)
    return {te: shipped.get(te) for te in minors}


def newest_of_its_day(catalog: Catalog, te: str) -> Wheels:
    """Return the base of the newest torch at the release of a minor of Transformer Engine, else of the oldest torch.

    It is for a line without a known image; pip installed this torch on the day of the release.
    """
    day = min(release.day for release in catalog.transformer_engine if minor(release.version) == te)
    out = {release.version for release in catalog.torch if "" < release.day <= day}
    bases = sorted(catalog.standard, key=lambda base: parse(base.torch))
    return next((base for base in reversed(bases) if base.torch in out), bases[0])


def _te_lines(catalog: Catalog) -> Iterator[Line]:
    for te, image in shipped_by(catalog).items():
        twin = catalog.twin(image) if image else None
        base = twin or newest_of_its_day(catalog, te)
        if image and twin:
            text = f"{base.id}, twin of {image.id} (which shipped it: {image.te_source})"
        else:
            text = f"{base.id}, the newest of its day ({image.id if image else 'no image'} is known to have shipped it)"
        yield Line(f"te{te.replace('.', '')}", base, te, f"Transformer Engine {te}: {text}")


def whole(catalog: Catalog, line: Line, night: Sequence[Planned], levels: Collection[Level]) -> list[Planned]:
    """Return the share of a line, and all else that its base runs with its Transformer Engine or without one."""
    rest = of_base(catalog, line.base.id, levels, te_line=line.te)
    return list({item.key: item for item in (*rest, *share(catalog, line, night, levels))}.values())


def share(catalog: Catalog, line: Line, night: Sequence[Planned], levels: Collection[Level]) -> list[Planned]:
    """Return what of a line is run at a desk, each case once.

    These are the night's cases of the line; of each failure whose rules bound the line's component, one case for each
    level and expectation; and of those whose expectation changes between the line and the next release before or after
    it, with all else equal, one for each level and direction, with the case on the other side. What reads both sides'
    API counts for a line of Transformer Engine, too.
    """
    component = TE if line.te else TORCH
    bases = {line.base.id, *(reader.id for reader in catalog.readers if line.te)}
    by_key = {item.key: item for item in night if item.cell.base in bases and line.has(item.cell)}
    for failure in catalog.failures:
        if any(component in rule.bounds for rule in (*failure.affected, *failure.works)):
            candidates = _candidates(catalog, failure, bases, levels)
            candidates.sort(key=lambda item: (item.key not in by_key, *_cost(failure, item)))
            for item in _decided(line, candidates):
                by_key.setdefault(item.key, item)
    return list(by_key.values())


def _candidates(catalog: Catalog, failure: Failure, bases: Collection[str], levels: Collection[Level]) -> list[Planned]:
    """Return the cases of a failure on these bases that have an expectation and that nothing masks."""
    planned = (
        plan_case(catalog, failure, case, level, cell)
        for cell in newest_patches([*cells_of(catalog, failure, bases), *picked_cells(catalog, failure)])
        if cell.base in bases
        for case, level in run_in(catalog, failure, cell, levels)
        if expected(catalog, failure, cell.stack, case) is not Expectation.UNKNOWN
    )
    return [item for item in planned if possible(catalog, item)]


def _cost(failure: Failure, item: Planned) -> tuple[object, ...]:
    """Return what orders cases that show the same: without a clone, quick ones, with the newest megatron-core."""
    sources = bool(item.source or item.te_source or item.writer_source)
    cores = (position(item.cell.stack[name]).release for name in (MCORE, WRITER_MCORE))
    return sources, failure.case_named(item.case).deadline, item.ranks, *(-number for core in cores for number in core)


def _decided(line: Line, candidates: Sequence[Planned]) -> Iterator[Planned]:
    """Yield the cases of one failure that show what the line decides, the first candidates that do."""
    sides = set[tuple[object, ...]]()
    for item, neighbour in _changes(line, candidates) if line.te else ():
        change = item.level, item.expectation, _te(neighbour) > _te(item)
        if change not in sides:
            sides |= {change, change[:2]}
            texts = (f"{item_of.cell.stack[TE]} {item_of.expectation.value}" for item_of in (item, neighbour))
            why = (Reason(ReasonKind.BOUNDARY, f"te {' beside '.join(texts)}"),)
            yield from (replace(item, why=why), replace(neighbour, why=why))
    for item in candidates:
        if line.has(item.cell) and (item.level, item.expectation) not in sides:
            sides.add((item.level, item.expectation))
            yield replace(item, why=(Reason(ReasonKind.PICKED, f"{item.expectation.value} on line {line.name}"),))


def _changes(line: Line, candidates: Sequence[Planned]) -> Iterator[tuple[Planned, Planned]]:
    """Yield each case of the line with that of the next release, on either side, that has another expectation."""
    rows: dict[tuple[object, ...], list[Planned]] = {}
    for item in sorted(candidates, key=_te):
        rows.setdefault(_without_te(item), []).append(item)
    for item in candidates:
        if line.has(item.cell):
            row = rows[_without_te(item)]
            beside = row[max(row.index(item) - 1, 0) : row.index(item) + 2]
            yield from ((item, neighbour) for neighbour in beside if neighbour.expectation is not item.expectation)


def _te(item: Planned) -> Version:
    return position(item.cell.stack[TE])


def _without_te(item: Planned) -> tuple[object, ...]:
    return item.cell.with_({TE: ABSENT}), item.case, item.level
