"""The repeats that a noisy probe needs: Wald's sequential test.

A failure that shows in only a part of its runs looks good in the others. One point is probed again until the
likelihood ratio between "has the failure" and "does not have it" exceeds 1/error or falls below error. By Ville's
inequality the result is then wrong with a probability of at most `error`, regardless of the number of runs.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from matrix.ground.errors import MatrixError

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
