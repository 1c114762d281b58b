"""What deviates between a layout and its reference: a pure decision over differences that were measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

# Relative. In float64 two orders of a reduction over a few thousand terms differ by 1e-13 of the largest term at most.
# Equal layouts differ by up to 2e-13, and with Adam by 7.7e-10 of a parameter: gradients that are zero in theory,
# noise of 1e-17, are divided by its epsilon of 1e-8. The smallest defect that was met is 4e-4.
TOLERANCE: Final = 1e-7
# A gradient that is zero in theory (a key's bias) is rounding noise: its scale is at least this part of the largest.
FLOOR: Final = 1e-3
# The order in which quantities depend on each other: the first that deviates is closest to the cause.
QUANTITIES: Final = ("loss", "gradient", "norm", "norm of gathered", "clip", "parameter", "logged")


@dataclass(frozen=True)
class Difference:
    """The largest difference of a quantity on one rank from the reference.

    `quantity` is one of QUANTITIES. `parameter` is a canonical name, or what is logged; "" for a quantity of the whole
    model. `step` counts from 0. `scale` is the size that `difference` is relative to. `ratio` is how many times the
    expected values the computed ones are, by least squares; None where these are zero.
    """

    quantity: str
    parameter: str
    step: int
    rank: int
    difference: float
    scale: float
    ratio: float | None = None

    @property
    def size(self) -> float:
        """The relative difference; infinite where it is not a number."""
        size = self.difference / self.scale if self.scale else float(self.difference > 0)
        return size if size == size else float("inf")


@dataclass(frozen=True)
class Deviation:
    """A quantity that is not that of the reference, with the ranks where it is not. See Difference."""

    quantity: str
    parameter: str
    step: int
    size: float
    ratio: float | None
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        """Return one line: quantity, parameter, size, ratio, step, ranks."""
        name = f"{self.quantity} of {self.parameter}" if self.parameter else self.quantity
        ratio = "" if self.ratio is None else f", {self.ratio:.6g} times the expected"
        ranks = ", ".join(map(str, self.ranks))
        return f"{name} deviates by {self.size:.3g}{ratio}, in step {self.step} on rank {ranks}"


def compare(differences: Iterable[Difference], tolerance: float = TOLERANCE) -> tuple[Deviation, ...]:
    """Return the deviations of the first step that has one, in the order of QUANTITIES, the largest first.

    Later steps start from other parameters: their differences follow from those of the first.
    """
    over = [difference for difference in differences if not difference.size <= tolerance]
    first = min((difference.step for difference in over), default=0)
    groups: dict[tuple[str, str], list[Difference]] = {}
    for difference in over:
        if difference.step == first:
            groups.setdefault((difference.quantity, difference.parameter), []).append(difference)
    deviations = [_merged(group) for group in groups.values()]
    return tuple(sorted(deviations, key=lambda row: (QUANTITIES.index(row.quantity), -row.size, row.parameter)))


def _merged(group: list[Difference]) -> Deviation:
    worst = max(group, key=lambda row: row.size)
    ranks = tuple(sorted({row.rank for row in group}))
    return Deviation(worst.quantity, worst.parameter, worst.step, worst.size, worst.ratio, ranks)
