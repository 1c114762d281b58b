"""Decide by a noisy number, such as a step time: is a point as good as the good end, or as bad as the bad one? Pure.

Both ends are measured first. Their middle separates good from bad. Each run of a point then adds to the likelihood
ratio of two normal distributions, one on each side of the middle, at the least distance that the ends have with the
given confidence: Wald's sequential test, as for a failure that shows in a part of its runs (noise.py). A run counts at
most two standard deviations beyond an end, so that one outlier decides nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from matrix.ground.errors import MatrixError
from matrix.prove.bisection.noise import ProbeResult, Run

LEAST: Final = 10  # runs of each end: of fewer, the noise is underestimated too often
MOST: Final = 200  # runs of each end
SHARE: Final = 6  # the standard error of the ends' difference is at most this part of the difference that matters
OUTLIER: Final = 3.0  # robust standard deviations beyond which a run of an end is moved to the nearest value within
SCALE: Final = 1.4826  # of the median absolute deviation: the standard deviation of a normal distribution
DOUBT: Final = 3.0  # standard errors: a difference within counts as chance
FLOOR: Final = 0.05  # least noise, as a part of the ends' distance: a constant number still has an end


@dataclass(frozen=True)
class Measured:
    """The numbers of some runs of one point: mean and standard deviation without outliers, and the count of runs."""

    mean: float
    deviation: float
    count: int

    @property
    def error(self) -> float:
        """Return the standard error of the mean."""
        return self.deviation / math.sqrt(self.count)

    def __str__(self) -> str:
        return f"{self.mean:.5g} +- {self.error:.2g} in {self.count} runs (spread {self.deviation:.2g})"


def level_of(numbers: Sequence[float]) -> Measured:
    """Return the level of some runs."""
    middle = statistics.median(numbers)
    spread = OUTLIER * SCALE * statistics.median(abs(number - middle) for number in numbers)
    near = [min(max(number, middle - spread), middle + spread) for number in numbers] if spread else list(numbers)
    return Measured(statistics.fmean(near), statistics.stdev(near) if len(near) > 1 else 0.0, len(near))


@dataclass(frozen=True)
class Metric:
    """The test of one number: the levels of both ends, and the distance that each run is tested for."""

    good: Measured
    bad: Measured
    tested: float

    @property
    def middle(self) -> float:
        """Return the number that separates good from bad."""
        return (self.good.mean + self.bad.mean) / 2

    @property
    def deviation(self) -> float:
        """Return the standard deviation of one run."""
        measured = _noise(self.good, self.bad)
        return max(measured, FLOOR * abs(self.bad.mean - self.good.mean))

    def weigh(self, seen: Run) -> tuple[ProbeResult, float]:
        """Return the side of one run, and the logarithm of its likelihood ratio bad : good. A failed run is a skip."""
        if isinstance(seen, ProbeResult):
            return ProbeResult.SKIP, 0.0
        half = abs(self.bad.mean - self.good.mean) / 2
        beyond = (seen - self.middle) * math.copysign(1, self.bad.mean - self.good.mean)
        limit = half + 2 * self.deviation
        counted = min(max(beyond, -limit), limit)
        return ProbeResult.BAD if beyond > 0 else ProbeResult.GOOD, 2 * self.tested * counted / self.deviation**2


def _noise(good: Measured, bad: Measured) -> float:
    """Return the standard deviation of one run, and one standard error of it more: an estimate from few runs is low."""
    pooled = math.sqrt((good.deviation**2 + bad.deviation**2) / 2)
    return pooled * (1 + 1 / math.sqrt(2 * (good.count + bad.count - 2)))


def runs_needed(good: Sequence[float], bad: Sequence[float], worse: float) -> int:
    """Return the number of runs of each end that separates a difference of the part `worse` from the noise."""
    if min(len(good), len(bad)) < LEAST:
        return LEAST
    levels = level_of(good), level_of(bad)
    surely = abs(levels[1].mean - levels[0].mean) - 2 * math.hypot(levels[0].error, levels[1].error)
    difference = max(worse * abs(levels[0].mean), surely) / SHARE
    return max(LEAST, math.ceil(2 * _noise(*levels) ** 2 / difference**2)) if difference else LEAST


def calibrated(good: Sequence[float], bad: Sequence[float], worse: float, confidence: float) -> Metric:
    """Return the test for two measured ends whose means differ by the part `worse` (0.05 for 5 %) at least.

    The ends may be wrong with half of the error that `confidence` leaves. Raises MatrixError where the ends do not
    differ that much, or where the noise hides it.
    """
    levels = level_of(good), level_of(bad)
    difference, error = levels[1].mean - levels[0].mean, math.hypot(levels[0].error, levels[1].error)
    least_difference = worse * abs(levels[0].mean)
    if abs(difference) < least_difference - (DOUBT + 1) * error or abs(difference) <= DOUBT * error:
        raise MatrixError(
            "the bad end is not worse than the good end",
            got=f"good {levels[0]}, bad {levels[1]}: {difference / abs(levels[0].mean or 1):+.1%}",
            expected=f"a difference of {worse:.1%}",
            fix="nothing was searched; a larger --worse-than needs fewer runs, a smaller one finds smaller changes",
        )
    surely = statistics.NormalDist().inv_cdf(1 - (1 - confidence) / 4)
    tested = abs(difference) / 2 - surely * error / 2
    return Metric(*levels, max(tested, abs(difference) / 8))


def one_step(metric: Metric, before: Sequence[float], after: Sequence[float]) -> tuple[bool, str]:
    """Return whether the change between two neighbours is the whole difference of the ends, and the step as text."""
    levels = level_of(before), level_of(after)
    step, whole = levels[1].mean - levels[0].mean, metric.bad.mean - metric.good.mean
    error = 2 * metric.deviation / math.sqrt(min(level.count for level in levels))
    base = abs(metric.good.mean) or 1.0
    text = f"the step is {levels[0].mean:.5g} -> {levels[1].mean:.5g} ({step / base:+.1%})"
    return abs(abs(step) - abs(whole)) <= DOUBT * error, f"{text}, the ends differ by {abs(whole) / base:.1%}"
