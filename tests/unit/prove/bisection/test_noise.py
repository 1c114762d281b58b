"""The weights of runs, and the number of runs that settle a point."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from matrix.ground.errors import MatrixError
from matrix.prove.bisection.noise import CERTAIN, MAX_RUNS, Noise, ProbeResult, Sample, Tally

GOOD, BAD, SKIP = ProbeResult.GOOD, ProbeResult.BAD, ProbeResult.SKIP


@pytest.mark.parametrize(
    ("shows", "invents"), [(0.0, 0.0), (0.4, 0.5), (0.5, 0.5), (1.1, 0.0), (1.0, 1.0), (0.5, -0.1)]
)
def test_uninformative_noise_is_rejected(shows: float, invents: float) -> None:
    with pytest.raises(MatrixError):
        Noise(shows, invents)


@pytest.mark.parametrize(("shows", "confidence", "runs"), [(1.0, 0.95, 1), (0.5, 0.95, 5), (0.3, 0.99, 13)])
def test_tries_show_a_present_failure(shows: float, confidence: float, runs: int) -> None:
    """All of `runs` good ones have a probability of at most 1 - confidence; of one run fewer it is more."""
    assert Noise(shows).tries(confidence) == runs
    assert (1 - shows) ** runs <= 1 - confidence + 1e-9
    assert runs == 1 or (1 - shows) ** (runs - 1) > 1 - confidence


@pytest.mark.parametrize(
    ("noise", "sample", "weight"),
    [
        (CERTAIN, BAD, math.inf),
        (CERTAIN, GOOD, -math.inf),
        (CERTAIN, SKIP, 0.0),
        (Noise(0.5), BAD, math.inf),
        (Noise(0.5), GOOD, math.log(0.5)),
        (Noise(1.0, 0.1), BAD, math.log(10)),
        (Noise(1.0, 0.1), GOOD, -math.inf),
        (Noise(0.7, 0.05), BAD, math.log(14)),
        (Noise(0.7, 0.05), GOOD, math.log(0.3 / 0.95)),
        (Noise(0.7, 0.05), SKIP, 0.0),
    ],
)
def test_weight_is_the_likelihood_ratio(noise: Noise, sample: ProbeResult, weight: float) -> None:
    result, ratio = noise.weigh(sample)
    assert result is sample
    assert ratio == pytest.approx(weight)


@dataclass(frozen=True)
class Weighed:
    """A test whose samples are the weights themselves."""

    def weigh(self, seen: Sample) -> tuple[ProbeResult, float]:
        """Return a bad result for a positive weight."""
        assert isinstance(seen, float)
        return (BAD if seen > 0 else GOOD), seen


@pytest.mark.parametrize(
    ("weights", "settled"),
    [
        ([], None),
        ([-math.log(0.5)], BAD),  # exactly the limit
        ([math.log(0.5)], GOOD),
        ([0.3, 0.3], None),
        ([0.3, 0.3, 0.3], BAD),
        ([-0.3, -0.3, 0.3, -0.3, -0.3], GOOD),
        ([math.inf], BAD),
    ],
)
def test_point_settles_at_its_error(weights: list[float], settled: ProbeResult | None) -> None:
    tally = Tally(Weighed())
    for weight in weights:
        assert tally.settled is None
        tally.add(weight, error=0.5)
    assert (tally.settled, tally.runs.total()) == (settled, len(weights))


def test_inconclusive_run_settles_at_once() -> None:
    """The next run of the same point may settle it otherwise."""
    tally = Tally(Noise(0.5))
    tally.add(SKIP, 0.05)
    assert (tally.settled, tally.weight, tally.runs[SKIP]) == (SKIP, 0.0, 1)
    assert not tally.certain


def test_balanced_point_becomes_a_skip() -> None:
    tally = Tally(Weighed())
    for number in range(MAX_RUNS):
        assert tally.settled is None
        tally.add(0.001 if number % 2 else -0.001, 0.05)
    assert tally.settled is SKIP


@pytest.mark.parametrize(("noise", "certain"), [(CERTAIN, True), (Noise(0.5, 0.1), False)])
def test_point_is_certain_by_proof_alone(noise: Noise, certain: bool) -> None:
    tally = Tally(noise)
    tally.add(BAD, 0.9)
    assert (tally.settled, tally.certain, tally.runs) == (BAD, certain, {BAD: 1})
