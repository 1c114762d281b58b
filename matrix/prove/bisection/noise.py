"""The repeats that a noisy probe needs: Wald's sequential test.

A failure that shows in only a part of its runs looks good in the others. One point is probed again until the
likelihood ratio between "has the failure" and "does not have it" exceeds 1/error or falls below error. By Ville's
inequality the result is then wrong with a probability of at most `error`, regardless of the number of runs.

Decide by a noisy number, such as a step time: is a point as good as the good end, or as bad as the bad one? Pure.

Both ends are measured first. Their middle separates good from bad. Each run of a point then adds to the likelihood
ratio of two normal distributions, one on each side of the middle, at the least distance that the ends have with the
given confidence: Wald's sequential test, as for a failure that shows in a part of its runs. A run counts at
most two standard deviations beyond an end, so that one outlier decides nothing.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from matrix.ground.errors import MatrixError

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
        return max(_noise(self.good, self.bad), FLOOR * abs(self.bad.mean - self.good.mean))

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


# Runs of one point after which it becomes a skip. A failure that shows in 3 of 10 runs takes 15 for an error of 0.5 %;
# a failure that takes more than this shows nearly as often where it is absent as where it is present.
MAX_RUNS: Final = 100


class ProbeResult(str, Enum):
    """The result of probing one point."""

    GOOD = "good"  # it passed
    BAD = "bad"  # it failed with this failure's signature
    SKIP = "skip"  # inconclusive: another failure, unavailable, not reached


Run = ProbeResult | float  # the result of one run, or the number that it printed
Sample = Run | tuple[Run, ...]  # of several runs in one session: each of them


class RunTest(Protocol):
    """Weighs the runs of a point: Noise for results, Metric for numbers."""

    def weigh(self, seen: Run) -> tuple[ProbeResult, float]:
        """Return the result of one run, and the logarithm of its likelihood ratio bad : good."""


@dataclass(frozen=True)
class Noise:
    """The error rates of a probe, as the user states them: every confidence rests on them.

    `shows` is the probability that a run shows the failure where it is present, `invents` where it is absent.
    """

    shows: float = 1.0
    invents: float = 0.0

    def __post_init__(self) -> None:
        """Raise MatrixError for rates that make every run uninformative."""
        if not 0 <= self.invents < self.shows <= 1:
            raise MatrixError(
                "such a probe shows nothing",
                got=f"shows {self.shows}, invents {self.invents}",
                expected="0 <= invents < shows <= 1",
            )

    def tries(self, confidence: float) -> int:
        """Return the number of runs of which one shows a present failure with this probability."""
        return 1 if self.shows == 1 else math.ceil(math.log(1 - confidence) / math.log(1 - self.shows))

    def weigh(self, seen: Run) -> tuple[ProbeResult, float]:
        """Return the result, and the logarithm of its likelihood ratio bad : good; infinite where one run is proof."""
        if seen is ProbeResult.BAD:
            return seen, math.log(self.shows / self.invents) if self.invents else math.inf
        if seen is ProbeResult.GOOD:
            return seen, math.log((1 - self.shows) / (1 - self.invents)) if self.shows < 1 else -math.inf
        return ProbeResult.SKIP, 0.0


CERTAIN: Final = Noise()


@dataclass
class Tally:
    """The runs of one point so far."""

    noise: RunTest
    runs: Counter[ProbeResult] = field(default_factory=Counter)
    weight: float = 0.0
    settled: ProbeResult | None = None

    def add(self, seen: Sample, error: float) -> None:
        """Count further runs; settle the point when the probability of a wrong result is at most `error`."""
        for run in seen if isinstance(seen, tuple) else (seen,):
            if self.settled is None:
                self._add(run, error)

    def _add(self, seen: Run, error: float) -> None:
        result, weight = self.noise.weigh(seen)
        self.runs[result] += 1
        if result is ProbeResult.SKIP:
            self.settled = ProbeResult.SKIP
            return
        self.weight += weight
        if abs(self.weight) >= -math.log(error):
            self.settled = ProbeResult.BAD if self.weight > 0 else ProbeResult.GOOD
        elif self.runs.total() >= MAX_RUNS:
            self.settled = ProbeResult.SKIP

    @property
    def certain(self) -> bool:
        """Return whether a single run was proof."""
        return math.isinf(self.weight)
