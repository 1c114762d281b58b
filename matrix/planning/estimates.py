"""The expected seconds of cases, from earlier runs or by default. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from statistics import median
from typing import Final

from matrix.catalog.failure import Level
from matrix.catalog.model import Catalog
from matrix.verdicts.planned import Planned

# s of a case that never ran. Levels contract and cpu: measured on two busy cores. Level gpu: not measured; the 10 s of
# level cpu, and 30 s to import a compiled Transformer Engine and start CUDA and NCCL in new processes.
DEFAULT_S: Final = {Level.CONTRACT: 0.1, Level.CPU: 10.0, Level.GPU: 40.0}
DEFAULT_TEXT: Final = "0.1 s at level contract and 10 s at level cpu, measured; 40 s at level gpu, not measured"
OF_DEADLINE: Final = 0.5  # the part of its own deadline that a case is expected to take, which is longer than the usual


class Basis(str, Enum):
    """What an estimate rests on."""

    CASE = "earlier runs of the case"
    OTHER_CELLS = "earlier runs of the case in other cells"
    DEADLINE = "half of the case's own deadline"
    DEFAULT = "a default"


@dataclass(frozen=True)
class Estimate:
    """The expected wall-clock seconds of a case."""

    seconds: float
    basis: Basis


class Durations:
    """The seconds that cases took: `past` has the median of the earlier runs, by case key."""

    def __init__(self, catalog: Catalog, past: Mapping[str, float]) -> None:
        self._catalog, self._past = catalog, past
        elsewhere: dict[str, list[float]] = {}
        for key, seconds in past.items():
            elsewhere.setdefault(without_cell(key), []).append(seconds)
        self._elsewhere = {name: median(seconds) for name, seconds in elsewhere.items()}

    def estimate(self, item: Planned) -> Estimate:
        """Return the estimate of a case."""
        if item.key in self._past:
            return Estimate(self._past[item.key], Basis.CASE)
        if (name := without_cell(item.key)) in self._elsewhere:
            return Estimate(self._elsewhere[name], Basis.OTHER_CELLS)
        case = self._catalog.failure(item.failure).case_named(item.case) if item.reproducible else None
        if case and case.deadline and item.level is not Level.CONTRACT:
            return Estimate(OF_DEADLINE * case.deadline, Basis.DEADLINE)
        return Estimate(DEFAULT_S[item.level], Basis.DEFAULT)

    def timed(self, items: Iterable[Planned]) -> list[Planned]:
        """Return the cases with their expected seconds."""
        return [replace(item, seconds=self.estimate(item).seconds) for item in items]


def without_cell(key: str) -> str:
    """Return failure, case and level of a case key."""
    return key.partition(" ")[2]
