"""What is known of one cell, in words: what each failure expects there and why, and how it stands to the night."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matrix.catalog.cell import Cell, parse_cell_id
from matrix.catalog.failure import Failure, Package
from matrix.catalog.model import Catalog, Container, Image, Reader, Wheels
from matrix.catalog.versions import NONE, is_version
from matrix.errors import MatrixError, closest
from matrix.planning.cases import masked_by
from matrix.planning.planned import Planned


def explain(catalog: Catalog, id: str, night: Sequence[Planned], lacks: Callable[[Planned], str]) -> dict[str, Any]:
    """Return what is known of the cell as plain JSON values. Raises MatrixError for a cell that can't be.

    `lacks` returns what this machine lacks for a case, "" where it can run.
    """
    cell = known_cell(catalog, id)
    base = catalog.base(cell.base)
    return {
        "cell": cell.id,
        "base": {Container: "image", Image: "image", Reader: "reader"}.get(type(base), "wheels"),
        "torch": cell.torch,
        "python": cell.python,
        "twin": _twin(catalog, cell),
        "excluded": catalog.excluded(cell),
        "failures": [_failure(catalog, failure, cell, night, lacks) for failure in catalog.failures],
    }


def known_cell(catalog: Catalog, id: str) -> Cell:
    """Return the cell of an id; its base and versions must be the catalog's. Raises MatrixError with a suggestion.

    The cell of a report comes with the hardware that the report names, which no id has.
    """
    named = parse_cell_id(id)
    stacks = {stack.cell.mcore for stack in catalog.stacks}
    builds = {version for failure in catalog.failures for version in failure.builds(Package.MCORE)}
    cores = [release.version for release in catalog.megatron_core]
    if named["mcore"] not in (NONE, *cores, *builds, *stacks):
        raise MatrixError(
            "no such megatron-core release", where=id, got=named["mcore"], fix=closest(named["mcore"], cores)
        )
    engines = [release.version for release in catalog.transformer_engine]
    if named["te"] != NONE and not is_version(named["te"]):
        raise MatrixError(
            "not a Transformer Engine version", where=id, got=named["te"], fix=closest(named["te"], engines)
        )
    if named["driver"] != NONE and not is_version(named["driver"]):
        raise MatrixError("not a driver version", where=id, got=named["driver"], expected="535 or 535.129.03")
    return reported_cells(catalog).get(id) or catalog.cell(**named)


def reported_cells(catalog: Catalog) -> dict[str, Cell]:
    """Return the cells of the reports' stacks by id."""
    return {cell.id: cell for cell in map(catalog.cell_of, catalog.stacks)}


def _twin(catalog: Catalog, cell: Cell) -> str:
    base = catalog.base(cell.base)
    if isinstance(base, Wheels):
        images = catalog.twins_of(base)
        return f"stands for {', '.join(image.id for image in images)}" if images else "stands for no image"
    if isinstance(base, (Reader, Image)):
        return "stands for no image"
    twin = catalog.twin(base)
    return f"its twin is {twin.id}" if twin else "has no twin"


def _failure(
    catalog: Catalog, failure: Failure, cell: Cell, night: Sequence[Planned], lacks: Callable[[Planned], str]
) -> dict[str, Any]:
    expectation, rule = failure.ruling(cell)
    planned = [item for item in night if item.cell.id == cell.id and item.failure == failure.id]
    return {
        "failure": failure.id,
        "title": failure.title,
        "expectation": expectation.value,
        "rule": str(rule) if rule else "",
        "reason": rule.reason if rule else "neither affected nor works says anything of it",
        "masked": masked_by(catalog, failure, cell),
        "night": [
            {
                "case": item.case,
                "level": item.level.value,
                "expectation": item.expectation.value,
                "why": list(map(str, item.why)),
                "here": lacks(item) or "runs",
            }
            for item in planned
        ],
    }


def in_words(told: dict[str, Any]) -> str:
    """Return the explanation as text for a terminal."""
    lines = [
        told["cell"],
        f"  base: {told['base']}, torch {told['torch']}, Python {told['python']}; {told['twin']}",
    ]
    if told["excluded"]:
        lines.append(f"  excluded: {told['excluded']}")
    for failure in told["failures"]:
        lines += ["", f"  {failure['failure']}: {failure['title']}", f"    expected: {failure['expectation']}"]
        if failure["rule"]:
            lines.append(f"    rule:     {failure['rule']}")
        lines.append(f"    reason:   {failure['reason']}")
        if failure["masked"]:
            lines.append(f"    masked:   {failure['masked']}; it is not planned here")
        for case in failure["night"]:
            expected = "" if case["expectation"] == failure["expectation"] else f", expected: {case['expectation']}"
            lines.append(f"    night:    {case['case']} at level {case['level']}{expected} ({case['here']})")
            lines += [f"              {why}" for why in case["why"]]
        if not failure["night"]:
            lines.append("    night:    not in it")
    return "\n".join(lines)
