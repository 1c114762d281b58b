"""How often a probe has to be repeated before its answer may be believed.

A failure that shows in only a part of its runs looks good in the others. One point is asked again until the
likelihood ratio between "the failure is here" and "it is not" passes 1/error or falls below error (Wald's sequential
test); by Ville's inequality the answer is then wrong with a probability of at most `error`, however long it took.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from matrix.errors import MatrixError

# Runs of one point after which it is given up as a skip. A failure that shows in 3 of 10 runs takes 15 for an error of
# 0.5 %; what takes more than this is nearly as often seen where it is not as where it is.
PATIENCE: Final = 100


class Seen(str, Enum):
    """What a probe of one point came to."""

    GOOD = "good"  # it passed
    BAD = "bad"  # it failed with this failure's signature
    SKIP = "skip"  # it says nothing: another failure, unavailable, not reached


@dataclass(frozen=True)
class Noise:
    """What is known of the probe, stated by whoever asks: every confidence rests on it.

    `shows` is the chance that a run shows the failure where it is, `invents` that a run shows it where it is not.
    """

    shows: float = 1.0
    invents: float = 0.0

    def __post_init__(self) -> None:
        """Raise MatrixError where a probe could tell nothing."""
        if not 0 <= self.invents < self.shows <= 1:
            raise MatrixError(
                "such a probe tells nothing",
                got=f"shows {self.shows}, invents {self.invents}",
                expected="0 <= invents < shows <= 1",
            )

    def weight(self, seen: Seen) -> float:
        """Return the logarithm of the likelihood ratio bad : good of one run; infinite where it settles the matter."""
        if seen is Seen.BAD:
            return math.log(self.shows / self.invents) if self.invents else math.inf
        return math.log((1 - self.shows) / (1 - self.invents)) if self.shows < 1 else -math.inf


CERTAIN: Final = Noise()


@dataclass
class Tally:
    """The runs of one point so far."""

    noise: Noise
    runs: Counter[Seen] = field(default_factory=Counter)
    weight: float = 0.0
    settled: Seen | None = None

    def add(self, seen: Seen, error: float) -> None:
        """Count one more run; settle the point when it may be wrong with a probability of at most `error`."""
        self.runs[seen] += 1
        if seen is Seen.SKIP:
            self.settled = Seen.SKIP
            return
        self.weight += self.noise.weight(seen)
        if abs(self.weight) >= -math.log(error):
            self.settled = Seen.BAD if self.weight > 0 else Seen.GOOD
        elif self.runs.total() >= PATIENCE:
            self.settled = Seen.SKIP

    @property
    def certain(self) -> bool:
        """Say whether a single run settled it beyond doubt."""
        return math.isinf(self.weight)
