"""Simulated histories: one culprit, places that can't be asked, probes that lie at times."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence

from matrix.bisection.ancestry import Ancestry
from matrix.bisection.noise import Noise, Seen


class History:
    """Answers as a history does that changes once, at `culprit` (or, in a list, at each of several places)."""

    def __init__(
        self,
        order: Ancestry,
        culprit: int | Sequence[int],
        *,
        skips: Collection[int] = (),
        old: Seen = Seen.GOOD,
        noise: Noise | None = None,
        seed: int = 0,
    ) -> None:
        self.order, self.skips, self.old, self.noise = order, frozenset(skips), old, noise or Noise()
        self.culprits = [culprit] if isinstance(culprit, int) else list(culprit)
        self.random = random.Random(seed)
        self.asked: list[list[int]] = []

    def __call__(self, places: Sequence[int]) -> list[Seen]:
        self.asked.append(list(places))
        return [self.answer(place) for place in places]

    def answer(self, place: int) -> Seen:
        if place in self.skips:
            return Seen.SKIP
        changes = sum(self.order.below[place] >> culprit & 1 for culprit in self.culprits)
        bad = (changes % 2 == 1) is (self.old is Seen.GOOD)
        chance = self.noise.shows if bad else self.noise.invents
        return Seen.BAD if self.random.random() < chance else Seen.GOOD


def rounds_needed(candidates: int, at_once: int) -> int:
    """ceil(log_{k+1} n), without floating point."""
    return next(rounds for rounds in range(64) if (at_once + 1) ** rounds >= candidates)


def allowed(errors_of: float, runs: int) -> float:
    """How many wrong claims may be among `runs` with an error of `errors_of` each: the mean and four deviations."""
    return errors_of * runs + 4 * math.sqrt(errors_of * (1 - errors_of) * runs)
