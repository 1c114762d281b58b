"""The history of one case over the nights: changes of its verdict, flakes, and steps of its duration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from types import MappingProxyType
from typing import Final

from matrix.ground.catalog.failure import Level
from matrix.ground.verdicts.record import SILENT, Verdict

NIGHTS: Final = 60  # shown
# A step: the medians of AROUND runs before and after differ by FACTOR and by LEAST_S seconds. A save and load took 1.1
# to 1.9 s over 40 nights of one machine; a busy machine doubles the time of a single run, not the median of five.
AROUND: Final = 5
FACTOR: Final = 1.5
LEAST_S: Final = 1.0


@dataclass(frozen=True)
class PastResult:
    """The result of a case in an earlier run, as the history has it without the record.

    `number` increases from run to run. `content` is the verdict-cache key. `cached`: the verdict came from the cache,
    the case did not run. `cell` is the cell's id, `started` a time (UTC, ISO 8601).
    """

    number: int
    run: str
    verdict: Verdict
    seconds: float = 0.0
    content: str = ""
    cached: bool = False
    level: Level = Level.CPU
    cell: str = ""
    started: str = ""

    @property
    def ran(self) -> bool:
        """Return whether the case ran in that run."""
        return not self.cached and self.verdict not in SILENT

    def to_json(self) -> dict[str, str]:
        """Return what `megatrix check --json` prints of the last run of a failure at a level."""
        return {
            "level": self.level.value,
            "run": self.run,
            "started": self.started,
            "cell": self.cell,
            "verdict": self.verdict.value,
        }


Pasts = Mapping[str, Sequence[PastResult]]  # case key -> nights, oldest first
NO_PASTS: Final[Pasts] = MappingProxyType({})


@dataclass(frozen=True)
class Flakes:
    """Of `again` runs with the same content as the run before, `flipped` had another colour: no regression."""

    flipped: int
    again: int

    def __str__(self) -> str:
        if not self.again:
            return "never run twice with the same content"
        share = self.flipped / self.again
        return f"{self.flipped} of {self.again} runs with nothing changed came out otherwise ({share:.0%})"


def flakes(pasts: Sequence[PastResult]) -> Flakes:
    """Count the runs with the same content hash as the run before, and those whose colour differs."""
    ran = [past for past in pasts if past.ran and past.content]
    again = [(earlier, later) for earlier, later in pairwise(ran) if earlier.content == later.content]
    return Flakes(sum(earlier.verdict.colour != later.verdict.colour for earlier, later in again), len(again))


def turns(pasts: Sequence[PastResult]) -> list[tuple[PastResult, PastResult, bool]]:
    """Return each change of colour between nights that ran: before, after, and whether the content changed too."""
    ran = [past for past in pasts if past.ran]
    return [
        (earlier, later, not earlier.content or earlier.content != later.content)
        for earlier, later in pairwise(ran)
        if earlier.verdict.colour != later.verdict.colour
    ]


def steps(seconds: Sequence[float]) -> list[int]:
    """Return the indices at which a duration steps up or down: `seconds[index]` is the first after the step."""
    indices: list[int] = []
    index = AROUND
    while index <= len(seconds) - AROUND:
        if _size(seconds, index) > 0:
            near = range(index, min(index + AROUND, len(seconds) - AROUND + 1))
            index = max(near, key=lambda one: _size(seconds, one))
            indices.append(index)
            index += AROUND
        else:
            index += 1
    return indices


def _size(seconds: Sequence[float], place: int) -> float:
    """Return how clear the step at `place` is, 0 where there is none."""
    window, following = seconds[place - AROUND : place], seconds[place : place + AROUND]
    low, high = sorted((median(window), median(following)))
    if high - low < LEAST_S or high < FACTOR * low:
        return 0
    # The best place has the least spread on each side.
    spread = sum(abs(value - median(window)) for value in window) + sum(
        abs(value - median(following)) for value in following
    )
    return (high - low) / (spread + 1e-9)
