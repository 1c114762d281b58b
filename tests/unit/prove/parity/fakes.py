"""A judge with planted causes, in place of the process in a cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from matrix.kit.parity.factors import FLOAT64, Deviation, Point, factors
from matrix.prove.parity.points import DEVIATES, EQUAL, REFUSED, PointResult, Space, contains

SINKS, REFUSAL = Point.parse("softmax=learnable tp=2"), Point.parse("recompute=full")
LOSS = Deviation("loss", "", 0, 0.5, 2.0, (0, 1))
NORM = Deviation("norm", "", 1, 1e-3, 0.999, (0,))


SOME = ("layers", "attention", "softmax", "bias", "experts", "recompute", "tp", "pp", "cp", "dp", "ep")


def few_factors(release: str = "0.19.2", avoided: Sequence[Point] = (), given: Point | None = None) -> Space:
    """Return the space in which the other factors have their defaults: a search of all of them takes seconds."""
    space = Space(release, [*avoided], given or Point())
    for name in space.choices.keys() - {*SOME}:
        space.choices[name] = [factors()[name].default]
    return space


@dataclass
class Planted:
    """Judges by planted causes: `deviating` points deviate, by quantity; `refused` ones are refused."""

    deviating: dict[Point, Deviation] = field(default_factory=lambda: {SINKS: NORM})
    refused: tuple[Point, ...] = (REFUSAL,)
    seeds: tuple[int, ...] = ()  # with which alone they deviate; () for all
    asked: list[tuple[Point, int]] = field(default_factory=list)
    dtypes: set[str] = field(default_factory=set)

    def __call__(self, point: Point, seed: int, dtype: str = FLOAT64) -> PointResult:
        self.asked.append((point, seed))
        self.dtypes.add(dtype)
        if any(contains(point, cause) for cause in self.refused):
            return PointResult(point, seed, REFUSED, text="ImportError: no such package 1")
        deviations = tuple(row for cause, row in self.deviating.items() if contains(point, cause))
        if deviations and (not self.seeds or seed in self.seeds):
            return PointResult(point, seed, DEVIATES, deviations, largest=0.5, seconds=0.1)
        return PointResult(point, seed, EQUAL, largest=1e-15, seconds=0.1)
