"""Simulated histories: one culprit, inconclusive places, noisy probes."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence

from matrix.prove.bisection.noise import Noise, ProbeResult
from matrix.prove.bisection.search import Ancestry


class History:
    """The probe of a history that changes at `culprit`: one place, or each place of a list."""

    def __init__(
        self,
        order: Ancestry,
        culprit: int | Sequence[int],
        *,
        skips: Collection[int] = (),
        old: ProbeResult = ProbeResult.GOOD,
        noise: Noise | None = None,
        seed: int = 0,
    ) -> None:
        self.order, self.skips, self.old, self.noise = order, frozenset(skips), old, noise or Noise()
        self.culprits = [culprit] if isinstance(culprit, int) else list(culprit)
        self.random = random.Random(seed)
        self.probed: list[list[int]] = []

    def __call__(self, places: Sequence[int]) -> list[ProbeResult]:
        self.probed.append(list(places))
        return [self.seen(place) for place in places]

    def seen(self, place: int) -> ProbeResult:
        if place in self.skips:
            return ProbeResult.SKIP
        changes = sum(self.order.below[place] >> culprit & 1 for culprit in self.culprits)
        bad = (changes % 2 == 1) is (self.old is ProbeResult.GOOD)
        chance = self.noise.shows if bad else self.noise.invents
        return ProbeResult.BAD if self.random.random() < chance else ProbeResult.GOOD


def rounds_needed(candidates: int, at_once: int) -> int:
    """Return ceil(log_{k+1} n), without floating point."""
    return next(rounds for rounds in range(64) if (at_once + 1) ** rounds >= candidates)


def allowed(error: float, runs: int) -> float:
    """Return the bound on wrong claims among `runs` with probability `error` each: the mean and four deviations."""
    return error * runs + 4 * math.sqrt(error * (1 - error) * runs)
