"""Cells (base x megatron x te x driver) and the clauses that select them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from matrix.catalog.schema import Identifier
from matrix.catalog.versions import NONE, Range
from matrix.errors import MatrixError

AXES: Final = ("base", "torch", "mcore", "te", "driver", "sm", "gpus", "python")
# Axes whose values are names; the others hold versions (sm: compute capability, 8.0; gpus: a count).
NAMED: Final = ("base",)
EVERYTHING: Final = "everything"  # the text of a clause without a condition
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, order=True)
class Cell:
    """One point of the matrix. `torch` and `python` are the base's; `sm` and `gpus` are those of a report's stack.

    `image` is the container that the base `host` stands in, if any: rules that name it apply.
    Versions are PEP 440 text, "none" where the axis is not used. `driver` is a version (470.161.03) or a branch.
    """

    base: str
    torch: str
    mcore: str
    te: str = NONE
    driver: str = NONE
    python: str = NONE
    sm: str = NONE
    gpus: str = NONE
    image: str = NONE

    @property
    def id(self) -> str:
        """Return the readable id: ngc-24.07/mcore-0.8.0/te-1.8.0+37280ec/driver-535."""
        return f"{self.base}/mcore-{self.mcore}/te-{self.te}/driver-{self.driver}"

    def to_json(self) -> dict[str, str]:
        """Return the id and every axis."""
        return {"id": self.id, **vars(self)}

    @classmethod
    def from_json(cls, cell: Mapping[str, str], stack: Mapping[str, str] = NOTHING) -> Cell:
        """Build a cell from the JSON of `to_json`. Raises TypeError for an axis that is missing or unknown.

        Journals, histories and plans of earlier versions hold cells without python, sm, gpus and image. Such a plan has
        the first three under `stack`, next to each cell; in such a record they are lost and become "none".
        """
        return cls(**{axis: value for axis, value in cell.items() if axis != "id"}, **stack)


@dataclass(frozen=True)
class Clause:
    """Conditions on axes, all of which must hold; an axis left out is not constrained. `reason` is for display."""

    base: tuple[Identifier, ...] = ()
    torch: Range | None = None
    mcore: Range | None = None
    te: Range | None = None
    driver: Range | None = None
    python: Range | None = None
    sm: Range | None = None
    gpus: Range | None = None
    reason: str = ""

    def matches(self, cell: Cell) -> bool:
        """Return whether every condition holds for `cell`."""
        if self.base and cell.base not in self.base and cell.image not in self.base:
            return False
        return all(getattr(cell, axis) in bound for axis, bound in self.bounds())

    def bounds(self) -> list[tuple[str, Range]]:
        """Return (axis, range) for each version axis that is constrained."""
        return [(axis, getattr(self, axis)) for axis in AXES if axis not in NAMED and getattr(self, axis) is not None]

    def __str__(self) -> str:
        parts = [f"base in ({', '.join(self.base)})"] if self.base else []
        return " and ".join(parts + [f"{axis} {bound.text}" for axis, bound in self.bounds()]) or EVERYTHING


def parse_cell_id(text: str) -> dict[str, str]:
    """Return {"base", "mcore", "te", "driver"} of a cell id. Raises MatrixError for anything else."""
    parts = text.split("/")
    prefixes = ("mcore-", "te-", "driver-")
    if len(parts) != 4 or not all(part.startswith(prefix) for part, prefix in zip(parts[1:], prefixes, strict=False)):
        raise MatrixError(
            "not a cell id",
            got=text,
            expected="BASE/mcore-VERSION/te-VERSION/driver-VERSION",
            fix="megatrix plan lists the cells of the night; none is the value of an axis that is not used",
        )
    return {
        "base": parts[0],
        **{prefix[:-1]: part[len(prefix) :] for part, prefix in zip(parts[1:], prefixes, strict=True)},
    }
