"""What the nights say of one case over time: when it changed, how often it flaked, where its duration stepped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from matrix.verdicts.record import SILENT, Verdict

NIGHTS: Final = 60  # shown
# A step: the medians of so many runs before and after differ by this factor, and by more than this many s. A save and
# load took 1.1 to 1.9 s over 40 nights of one machine; a busy one doubles a single run, not the median of five.
AROUND: Final = 5
FACTOR: Final = 1.5
LEAST_S: Final = 1.0


@dataclass(frozen=True)
class Past:
    """What one night said of a case. `content` is what it ran with; `cached`: it did not run, an earlier night did.

    `number` grows from night to night.
    """

    number: int
    run: str
    verdict: Verdict
    seconds: float
    content: str
    cached: bool

    @property
    def ran(self) -> bool:
        """Say whether it ran that night."""
        return not self.cached and self.verdict not in SILENT


Pasts = Mapping[str, Sequence[Past]]  # case key -> nights, oldest first


@dataclass(frozen=True)
class Flakes:
    """`flipped` of `again` runs with the very content of the run before gave another colour: that is no regression."""

    flipped: int
    again: int

    def __str__(self) -> str:
        if not self.again:
            return "never run twice with the same content"
        share = self.flipped / self.again
        return f"{self.flipped} of {self.again} runs with nothing changed came out otherwise ({share:.0%})"


def flakes(pasts: Sequence[Past]) -> Flakes:
    """Count runs that repeat the one before: the same content, by its hash."""
    ran = [past for past in pasts if past.ran and past.content]
    again = [(one, other) for one, other in pairwise(ran) if one.content == other.content]
    return Flakes(sum(one.verdict.colour != other.verdict.colour for one, other in again), len(again))


def turns(pasts: Sequence[Past]) -> list[tuple[Past, Past, bool]]:
    """Return each change of colour between nights that ran: before, after, and whether anything else had changed."""
    ran = [past for past in pasts if past.ran]
    return [
        (one, other, not one.content or one.content != other.content)
        for one, other in pairwise(ran)
        if one.verdict.colour != other.verdict.colour
    ]


def steps(seconds: Sequence[float]) -> list[int]:
    """Return the places at which a duration steps up or down for good: `seconds[place]` is the first after the step."""
    found: list[int] = []
    place = AROUND
    while place <= len(seconds) - AROUND:
        if _size(seconds, place) > 0:
            near = range(place, min(place + AROUND, len(seconds) - AROUND + 1))
            place = max(near, key=lambda one: _size(seconds, one))
            found.append(place)
            place += AROUND
        else:
            place += 1
    return found


def _size(seconds: Sequence[float], place: int) -> float:
    """Return how clear a step is here, 0 where there is none."""
    window, after = seconds[place - AROUND : place], seconds[place : place + AROUND]
    low, high = sorted((median(window), median(after)))
    if high - low < LEAST_S or high < FACTOR * low:
        return 0
    # The clearest place is the one that leaves the least of either side on the other.
    spread = sum(abs(one - median(window)) for one in window) + sum(abs(one - median(after)) for one in after)
    return (high - low) / (spread + 1e-9)
