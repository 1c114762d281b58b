"""The explanation of one cell: the expectation of each failure, its reason, and the cell's cases in the night."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matrix.ground.cases.cells import masked_by
from matrix.ground.cases.machine_requirements import Fitting, fit_of
from matrix.ground.catalog.failure import Failure, Ruling
from matrix.ground.catalog.model import Catalog, Container, Image, ReaderBase, Wheels
from matrix.ground.catalog.stack import ABSENT, MCORE, PYTHON, TORCH, WRITER_MCORE, Cell, Value, parse_cell_id, short
from matrix.ground.errors import MatrixError, closest
from matrix.ground.verdicts.planned import Planned


@dataclass(frozen=True)
class PlannedCase:
    """A case of the night; `lack` names what this machine lacks for it, or how it runs, "" where it simply can."""

    planned: Planned
    lack: str

    @property
    def here(self) -> str:
        """Return "runs", with how its ranks share a GPU, or what this machine lacks for the case."""
        return self.lack or "runs"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "case": self.planned.case,
            "level": self.planned.level.value,
            "expectation": self.planned.expectation.value,
            "why": list(map(str, self.planned.why)),
            "here": self.here,
        }


@dataclass(frozen=True)
class FailureInCell:
    """A failure in a cell: the ruling on it, the one that `check` shows, and its cases of the night there.

    `masked` is why every case is masked, None if it is not.
    """

    failure: Failure
    ruling: Ruling
    masked: str | None
    night: tuple[PlannedCase, ...]

    @property
    def reason(self) -> str:
        """Return the reason for the expectation."""
        return self.ruling.rule.reason if self.ruling.rule else "no rule of affected or works applies to the cell"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "failure": self.failure.id,
            "title": self.failure.title,
            "expectation": self.ruling.expectation.value,
            "rule": str(self.ruling.rule) if self.ruling.rule else "",
            "reason": self.reason,
            "masked": self.masked,
            "night": [case.to_json() for case in self.night],
        }


@dataclass(frozen=True)
class Explanation:
    """A cell, the kind of its base, its twin, why it is excluded (None if it is not), and each failure.

    `driver` is how the image of the cell runs on its driver, None where it has not both.
    """

    cell: Cell
    base: str
    twin: str
    excluded: str | None
    driver: Fitting | None
    failures: tuple[FailureInCell, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "cell": self.cell.id,
            "base": self.base,
            "torch": str(self.cell.stack[TORCH]),
            "python": str(self.cell.stack[PYTHON]),
            "twin": self.twin,
            "excluded": self.excluded,
            "driver": {"fit": self.driver.fit.value, "reason": self.driver.reason} if self.driver else None,
            "failures": [failure.to_json() for failure in self.failures],
        }


def explain(catalog: Catalog, id: str, night: Sequence[Planned], lacks: Callable[[Planned], str]) -> Explanation:
    """Return the explanation of a cell. Raises MatrixError for a cell that can't exist.

    `lacks` returns what this machine lacks for a case, "" where it can run.
    """
    cell = known_cell(catalog, id)
    kind = {Container: "image", Image: "image", ReaderBase: "reader"}.get(type(catalog.base(cell.base)), "wheels")
    explained = (_failure(catalog, failure, cell, night, lacks) for failure in catalog.failures)
    excluded, driver = catalog.excluded(cell.stack), fit_of(catalog, cell.stack)
    return Explanation(cell, kind, _twin(catalog, cell), excluded, driver, tuple(explained))


def known_cell(catalog: Catalog, id: str) -> Cell:
    """Return the cell of an id. Raises MatrixError, with a suggestion, for a base or version not in the catalog.

    The cell of a report has the hardware that the report names; an id does not contain it.
    """
    parts = parse_cell_id(id)
    values: dict[str, Value] = parts["values"]
    reported = {report.cell.versions.get(MCORE) for report in catalog.reports}
    for component in (MCORE, WRITER_MCORE):
        cores = [release.version for release in catalog.megatron_core]
        builds = {version for failure in catalog.failures for version in failure.builds(MCORE)}
        version = values.get(component, ABSENT)
        if version not in (ABSENT, *cores, *builds, *reported):
            raise MatrixError(
                "no such megatron-core release",
                where=id,
                got=f"{short(component)} {version}",
                fix=closest(str(version), cores),
            )
    return reported_cells(catalog).get(id) or catalog.cell(**parts)


def reported_cells(catalog: Catalog) -> dict[str, Cell]:
    """Return the cells of the reports' stacks by id."""
    return {cell.id: cell for cell in (catalog.cell_named(report.cell) for report in catalog.reports)}


def _twin(catalog: Catalog, cell: Cell) -> str:
    base = catalog.base(cell.base)
    if isinstance(base, Wheels):
        images = catalog.twins_of(base)
        return f"stands for {', '.join(image.id for image in images)}" if images else "stands for no image"
    if isinstance(base, (ReaderBase, Image)):
        return "stands for no image"
    twin = catalog.twin(base)
    return f"its twin is {twin.id}" if twin else "has no twin"


def _failure(
    catalog: Catalog, failure: Failure, cell: Cell, night: Sequence[Planned], lacks: Callable[[Planned], str]
) -> FailureInCell:
    planned = [item for item in night if item.cell.id == cell.id and item.failure == failure.id]
    cases = tuple(PlannedCase(item, lacks(item)) for item in planned)
    return FailureInCell(failure, failure.ruling(cell.stack), masked_by(catalog, failure, cell.stack), cases)
