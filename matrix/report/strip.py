"""The history of a case as the shapes of two pictures, in SVG user units, each with a text alternative."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from matrix.store.trend import PastResult, steps
from matrix.verdicts.record import Verdict

STEP: Final = 9  # width of a night
# Height and colour of a bar both show the verdict: red is full height, green half, no result a thin line.
FULL: Final = 22
HEIGHTS: Final = {"red": FULL, "learned": 15, "green": 10}
TREND: Final = 60  # height of the line of durations


@dataclass(frozen=True)
class Bars:
    """Neighbouring nights with the same verdict: the x of each bar, and its text for a pointer."""

    verdict: Verdict
    cached: bool
    height: int
    nights: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Strip:
    """A bar for each night, oldest first."""

    width: int
    height: int
    bars: tuple[Bars, ...]
    text: str


def strip(pasts: Sequence[PastResult]) -> Strip:
    """Return the verdicts as bars."""
    runs = groupby(enumerate(pasts), key=lambda each: (each[1].verdict, each[1].cached))
    bars = tuple(_bars(*key, [(place, past.run) for place, past in same]) for key, same in runs)
    return Strip(STEP * len(pasts), FULL, bars, render(pasts))


def _bars(verdict: Verdict, cached: bool, nights: Sequence[tuple[int, str]]) -> Bars:
    shown = f"{verdict.value}{', cached' if cached else ''}"
    height = HEIGHTS.get(verdict.colour, 3)
    return Bars(verdict, cached, height, tuple((place * STEP, f"{run}: {shown}") for place, run in nights))


def render(pasts: Sequence[PastResult]) -> str:
    """Return the verdicts, oldest first, equal neighbours as one: "holds x 12, regressed x 2"."""
    runs = groupby(past.verdict for past in pasts)
    return ", ".join(f"{verdict.value} x {sum(1 for _ in same)}" for verdict, same in runs)


@dataclass(frozen=True)
class Trend:
    """Durations as a line: its points, and the x of each step."""

    width: int
    height: int
    line: str
    steps: tuple[int, ...]
    text: str


def trend(pasts: Sequence[PastResult]) -> Trend | None:
    """Return the durations of the nights in which the case ran, None for fewer than two."""
    ran = [past for past in pasts if past.ran]
    if len(ran) < 2:
        return None
    seconds, places = [past.seconds for past in ran], [night * STEP + 4 for night in range(len(ran))]
    top = max(max(seconds), 0.001)
    line = " ".join(
        f"{x},{round(TREND - 4 - (TREND - 8) * each / top, 1)}" for x, each in zip(places, seconds, strict=True)
    )
    marked = steps(seconds)
    changes = [f"from {seconds[place - 1]:.1f} s to {seconds[place]:.1f} s at {ran[place].run}" for place in marked]
    text = f"{min(seconds):.1f} to {top:.1f} s in {len(ran)} runs; " + (
        f"steps {'; '.join(changes)}" if changes else "no step"
    )
    return Trend(STEP * len(ran), TREND, line, tuple(places[place] for place in marked), text)
