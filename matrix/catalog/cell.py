"""Cells (base x megatron x te x driver x open packages) and the clauses that select them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, Final

from matrix.catalog.codec import fields_from_plain, fields_to_plain
from matrix.catalog.schema import Identifier
from matrix.catalog.versions import NONE, Range, is_version
from matrix.errors import MatrixError

AXES: Final = ("base", "torch", "mcore", "te", "driver", "sm", "gpus", "python", "writer_mcore", "writer_te")
# Axes whose values are names; the others hold versions (sm: compute capability, 8.0; gpus: a count).
NAMED: Final = ("base",)
EVERYTHING: Final = "everything"  # the text of a clause without a condition
WRITER: Final = ("writer_mcore", "writer_te")  # axes of the cell that wrote the checkpoint


@dataclass(frozen=True, order=True)
class Cell:
    """One point of the matrix. `torch` and `python` are the base's; `sm` and `gpus` are those of a report's stack.

    `image` is the container that the base `host` stands in, if any: rules that name it apply.
    `packages` ("NAME==VERSION", names canonical) are laid over the base, `provided` are those that the base pins.
    `writer_mcore` and `writer_te` belong to the cell that wrote the checkpoint which this one reads.
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
    packages: tuple[str, ...] = ()
    provided: tuple[str, ...] = ()
    writer_mcore: str = NONE
    writer_te: str = NONE

    @property
    def id(self) -> str:
        """Return the readable id: ngc-24.07/mcore-0.8.0/te-1.8.0+37280ec/driver-535.

        Open packages and the writer follow where the cell has them: .../transformers-4.57.6, .../writer-mcore-0.19.2.
        """
        return "/".join([self.base, *(f"{name}-{version}" for name, version in self.named.items())])

    @property
    def named(self) -> dict[str, str]:
        """Return what the id names besides the base: name -> version, "none" for an axis that is not used."""
        writer = {axis.replace("_", "-"): getattr(self, axis) for axis in WRITER if getattr(self, axis) != NONE}
        return {"mcore": self.mcore, "te": self.te, "driver": self.driver, **writer, **pinned(self.packages)}

    def version(self, axis: str) -> str:
        """Return the version on an axis, or of a package by name; "none" where there is none."""
        if axis in AXES:
            return str(getattr(self, axis))
        return pinned(self.packages).get(axis) or pinned(self.provided).get(axis, NONE)

    @property
    def writer(self) -> Cell | None:
        """Return the cell that wrote the checkpoint, None where none is read: this one with the writer's packages."""
        if self.writer_mcore == self.writer_te == NONE:
            return None
        own = {"mcore": self.writer_mcore, "te": self.writer_te}
        given: dict[str, Any] = {axis: version for axis, version in own.items() if version != NONE}
        return replace(self, **given, writer_mcore=NONE, writer_te=NONE)

    def to_plain(self) -> dict[str, Any]:
        """Return the id and every axis."""
        return {"id": self.id, **fields_to_plain(self)}

    @classmethod
    def from_plain(cls, value: Mapping[str, Any]) -> Cell:
        """Return the cell of these axes; earlier versions wrote none of python, sm, gpus and image.

        Raises MalformedError.
        """
        return fields_from_plain(cls, value, "id")


@cache
def pinned(packages: tuple[str, ...]) -> Mapping[str, str]:
    """Return name -> version of packages as "NAME==VERSION"."""
    return dict(package.split("==", 1) for package in packages)


@dataclass(frozen=True)
class Clause:
    """Conditions on axes and on `packages` by canonical name, all of which must hold; what is left out may be anything.

    `reason` is for display.
    """

    base: tuple[Identifier, ...] = ()
    torch: Range | None = None
    mcore: Range | None = None
    te: Range | None = None
    driver: Range | None = None
    python: Range | None = None
    sm: Range | None = None
    gpus: Range | None = None
    writer_mcore: Range | None = None
    writer_te: Range | None = None
    packages: Mapping[str, Range] = field(default_factory=dict)
    reason: str = ""

    def matches(self, cell: Cell) -> bool:
        """Return whether every condition holds for `cell`."""
        if self.base and cell.base not in self.base and cell.image not in self.base:
            return False
        for axis, bound in self._axes:
            if getattr(cell, axis) not in bound:
                return False
        return all(cell.version(name) in bound for name, bound in self.packages.items())

    @cached_property
    def _axes(self) -> tuple[tuple[str, Range], ...]:  # a night asks for it a million times
        bounds = ((axis, getattr(self, axis)) for axis in AXES if axis not in NAMED)
        return tuple((axis, bound) for axis, bound in bounds if bound is not None)

    def bounds(self) -> list[tuple[str, Range]]:
        """Return (axis, range) for each version axis and each package that is constrained."""
        return [*self._axes, *self.packages.items()]

    def __str__(self) -> str:
        parts = [f"base in ({', '.join(self.base)})"] if self.base else []
        return " and ".join(parts + [f"{axis} {bound.text}" for axis, bound in self.bounds()]) or EVERYTHING


def parse_cell_id(text: str) -> dict[str, Any]:
    """Return the axes that a cell id names, as arguments of Catalog.cell. Raises MatrixError for anything else."""
    base, *parts = text.split("/")
    prefixes = ("mcore-", "te-", "driver-")
    known, more = parts[:3], parts[3:]
    named: dict[str, Any] = {
        prefix[:-1]: part.removeprefix(prefix) for prefix, part in zip(prefixes, known, strict=False)
    }
    packages = []
    for part in more:
        name, _, version = part.rpartition("-")
        axis = name.replace("-", "_")
        if axis in WRITER:
            named[axis] = version
        else:
            packages.append(f"{name}=={version}")
    whole = len(known) == 3 and all(part.startswith(prefix) for part, prefix in zip(known, prefixes, strict=True))
    if not whole or not all(is_version(part.rpartition("-")[2]) and "-" in part[1:] for part in more):
        raise MatrixError(
            "not a cell id",
            got=text,
            expected="BASE/mcore-VERSION/te-VERSION/driver-VERSION",
            fix="megatrix plan lists the cells of the night; none is the value of an axis that is not used",
        )
    return {"base": base, **named, **({"packages": tuple(packages)} if packages else {})}
