"""The expected seconds of cases, from earlier runs or by default. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from statistics import median
from typing import Final

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.stack import MCORE, TE
from matrix.ground.verdicts.planned import Planned

# s of a case that never ran. Levels contract and cpu: measured on two busy cores. Level gpu: not measured; the 10 s of
# level cpu, and 30 s to import a compiled Transformer Engine and start CUDA and NCCL in new processes.
DEFAULT_S: Final = {Level.CONTRACT: 0.1, Level.CPU: 10.0, Level.GPU: 40.0}
DEFAULT_TEXT: Final = "0.1 s at level contract and 10 s at level cpu, measured; 40 s at level gpu, not measured"
# On disk, of the environment of a base and of an overlay; seconds to make an environment from a near mirror. Measured
# on two cores on 2026-11-27: 4.3 - 5.1 GB with torch 2.3.1 - 2.15.0 (a CPU build: 1.1), and 1.2 GB for 70 overlays.
ENVIRONMENT_GB: Final = 5.1
ENVIRONMENT_S: Final = 60.0
OVERLAY_GB: Final = 0.02
START_S: Final = 15.0  # s of a run besides its cases: a night from the verdict cache, on two cores
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


def statement(
    waiting: Sequence[Planned], cached: int, absent: Collection[str], parallel: tuple[int, int] = (1, 1)
) -> str:
    """Return what a run is about to do: cases, minutes, and the disk that it takes at most.

    `absent` are the bases whose environments it makes, `parallel` how many bases, and cases on each, run at a time.
    """
    if not waiting:
        return f"nothing to run: {cached} cases from the cache"
    of_bases = dict.fromkeys([item.cell.base for item in waiting], 0.0)
    packages = set[object]()
    for item in waiting:
        of_bases[item.cell.base] += item.seconds
        for side in (item, item.writer):
            packages |= {(name, side.cell.stack[name]) for name in (MCORE, TE)} | {*side.packages} if side else set()
    on_lane = sum(of_bases.values()) / min(parallel[0], len(of_bases))
    seconds = max(*of_bases.values(), on_lane) / parallel[1] + len(absent) * ENVIRONMENT_S + START_S
    size = len(absent) * ENVIRONMENT_GB + len(packages) * OVERLAY_GB
    text = f"{len(waiting)} cases to run, {cached} from the cache; expected: {seconds / 60 + 0.5:.0f} min, at most"
    return f"{text} {size:.1f} GB of disk{', made: ' * bool(absent)}{', '.join(sorted(absent))}"
