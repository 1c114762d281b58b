"""The test of a noisy number: simulated step times, and a regression in a repository that the test makes."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.stack import MCORE
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind, RankEnd
from matrix.ground.verdicts.planned import Planned
from matrix.ground.verdicts.record import Record
from matrix.kit.command import METRIC
from matrix.prove.bisection import noise as metrics
from matrix.prove.bisection.axes import Clone, Subject, at_commit
from matrix.prove.bisection.commits import Searcher
from matrix.prove.bisection.ends import confirmed, measured
from matrix.prove.bisection.noise import (
    Measured,
    Metric,
    ProbeResult,
    Tally,
    calibrated,
    level_of,
    one_step,
    runs_needed,
)
from matrix.prove.bisection.probe_session import Bisection, BisectionSession, End, ProbeStore, metric_of
from matrix.prove.bisection.probing import Show
from matrix.prove.bisection.search import Plan, ResultKind
from tests.profiles import PROFILE, examples
from tests.unit.prove.bisection import repositories
from tests.unit.prove.bisection.repositories import ENTRY, KNOWN, on, record_of, revision

COMMITS = 64
WORSE = 0.05


def subject() -> Subject:
    return Subject(KNOWN, ENTRY, ENTRY.case[0], Level.CPU, on("torch-2.4.0", "0.9.0"))


class Stopwatch:
    """A probe that prints the step time of a commit, with noise."""

    def __init__(self, seconds: Callable[[int], float], noise: float, seed: int, places: dict[str, int]) -> None:
        self._seconds, self._noise, self._random, self._places = seconds, noise, random.Random(seed), places
        self.runs = 0

    def __call__(self, planned: Sequence[Planned], show: Show, number: int = 1) -> None:
        for item in planned:
            self.runs += 1
            mean = self._seconds(self._places[revision(item)])
            value = self._random.gauss(mean, self._noise * mean)
            ends = (RankEnd(0, 0, returned=True, value={METRIC: [value]}),)
            show(record_of(item, Outcome(OutcomeKind.PASSED, exit_code=0, ranks=ends)))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repositories.chain(tmp_path_factory.mktemp("clone") / "c.git", COMMITS)


class Unwritten(ProbeStore):
    """A probe store in memory."""

    def keep(self, number: int, record: Record) -> None:
        self.known(number)[record.key] = record


def searched(
    path: Path, folder: Path, seconds: Callable[[int], float], seed: int, noise: float = 0.03
) -> tuple[Bisection, int]:
    """Return the result between the first and the last commit, and the number of runs."""
    with Clone(str(path), "megatron-core") as clone:
        commits = [clone.commit(f"c{number}") for number in range(COMMITS)]
        probe = Stopwatch(seconds, noise, seed, {commit.id: place for place, commit in enumerate(commits)})
        session = BisectionSession(probe, Unwritten(folder), lambda _: None, read=metric_of)
        ends = [End(at_commit(subject(), MCORE, clone, one.id), str(one)) for one in (commits[0], commits[-1])]
        noise_of = measured(session, subject(), ends[0], ends[1], WORSE, 0.95)
        assert noise_of
        plan = Plan(noise=noise_of, checks=2)
        found = Searcher(subject(), MCORE, clone, plan, session).between(commits[0], commits[-1])
        found = confirmed(found, noise_of, session)
        return found, probe.runs


@pytest.mark.draws
def test_a_regression_is_found_in_noise(path: Path, tmp_path: Path) -> None:
    """5 % with 3 % noise over 64 commits: right with nine of ten seeds; each seed moves the regression too."""
    right, runs, seeds = 0, [], max(5, examples(10, PROFILE))
    for seed in range(seeds):
        guilty = 1 + random.Random(seed).randrange(COMMITS - 1)
        found, ran = searched(path, tmp_path / str(seed), lambda place, at=guilty: 1.05 if place >= at else 1.0, seed)  # type: ignore[misc]
        runs.append(ran)
        right += found.result.kind is ResultKind.FIRST_BAD and found.result.candidates == (guilty,)
    assert right >= 0.9 * seeds


@pytest.mark.parametrize(
    "seconds",
    [
        lambda place: 1 + 0.1 * place / (COMMITS - 1),
        lambda place: 1.1 if 10 <= place < 30 or place >= 50 else 1.0,
    ],
    ids=["a slope", "up, down and up"],
)
def test_other_histories_are_ambiguous(path: Path, tmp_path: Path, seconds: Callable[[int], float]) -> None:
    found, _ = searched(path, tmp_path / "s", seconds, 1, noise=0.003)

    if found.result.kind is not ResultKind.AMBIGUOUS:  # the checks met no contradiction: the answer is a real step
        assert any("+10.0%" in note for note in found.notes)
    else:
        assert found.result.flips or any("not one step" in note for note in found.notes)


def test_ends_that_do_not_differ_are_refused() -> None:
    with pytest.raises(MatrixError, match="the bad end is not worse than the good end"):
        calibrated([1.0, 1.01, 0.99, 1.0, 1.0], [1.01, 1.0, 1.02, 1.0, 1.01], WORSE, 0.95)


def test_a_smaller_number_may_be_the_worse_one() -> None:
    """Such as a throughput: the ends decide the direction."""
    test = calibrated([100.0, 101, 99, 100, 100], [90.0, 91, 89, 90, 90], WORSE, 0.95)

    assert (test.weigh(91.0)[0], test.weigh(99.0)[0]) == (ProbeResult.BAD, ProbeResult.GOOD)


def test_one_outlier_decides_nothing() -> None:
    test = calibrated([1.0, 1.03, 0.97] * 7, [1.05, 1.08, 1.02] * 7, WORSE, 0.95)
    tally = Tally(test)
    tally.add(50.0, 0.005)

    assert tally.settled is None


@given(st.floats(2.0, 1e9))
def test_level_withstands_an_outlier(outlier: float) -> None:
    level = level_of([1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 0.99, outlier])

    assert level.mean < 1.01
    assert level.deviation < 0.03


def test_noise_determines_the_runs_of_an_end() -> None:
    quiet, loud = [1.0, 1.001, 0.999, 1.0, 1.0] * 2, [1.0, 1.06, 0.94, 1.03, 0.97] * 2

    assert runs_needed(quiet, quiet, WORSE) == metrics.LEAST
    assert runs_needed(loud, loud, WORSE) > 20


def test_a_step_is_compared_with_the_whole() -> None:
    quiet, worse = [1.0, 1.001, 0.999, 1.0, 1.0], [1.1, 1.101, 1.099, 1.1, 1.1]
    test = calibrated(quiet, worse, WORSE, 0.95)

    assert one_step(test, quiet, worse)[0]
    assert not one_step(test, quiet, [1.05, 1.051, 1.049, 1.05, 1.05])[0]


# Ten runs each: means 10 and 14; the deviation of a run is sqrt(10 / 9) in both.
LOW, HIGH = [9.0, 11.0] * 5, [13.0, 15.0] * 5
ENDS = Metric(Measured(10.0, 1.0, 20), Measured(14.0, 1.0, 20), tested=1.5)
DEVIATION = 1 + 1 / math.sqrt(76)  # of one run, and a standard error of it
REVERSED = Metric(ENDS.bad, ENDS.good, tested=1.5)
CONSTANT = Metric(Measured(10.0, 0.0, 20), Measured(14.0, 0.0, 20), tested=1.5)


@pytest.mark.parametrize(
    ("numbers", "near"),
    [
        ([5.0], [5.0]),
        ([1.0, 2.0], [1.0, 2.0]),
        ([1.0, 2.0, 3.0, 4.0, 100.0], [1.0, 2.0, 3.0, 4.0, 3 + 3 * 1.4826]),
        ([-100.0, 2.0, 3.0, 4.0, 5.0], [3 - 3 * 1.4826, 2.0, 3.0, 4.0, 5.0]),
        ([1.0, 1.0, 1.0, 5.0], [1.0, 1.0, 1.0, 5.0]),  # no spread
    ],
)
def test_outliers_move_to_three_deviations(numbers: list[float], near: list[float]) -> None:
    level = level_of(numbers)
    deviation = statistics.stdev(near) if len(near) > 1 else 0.0
    assert (level.mean, level.deviation, level.count) == pytest.approx((statistics.fmean(near), deviation, len(near)))


def test_level_names_mean_error_and_runs() -> None:
    level = Measured(10.0, 0.6, 9)
    assert level.error == pytest.approx(0.2)
    assert str(level) == "10 +- 0.2 in 9 runs (spread 0.6)"


@pytest.mark.parametrize(
    ("test", "sample", "side", "weight"),
    [
        (ENDS, 12.5, ProbeResult.BAD, 1.5 / DEVIATION**2),
        (ENDS, 11.5, ProbeResult.GOOD, -1.5 / DEVIATION**2),
        (ENDS, 12.0, ProbeResult.GOOD, 0.0),
        (ENDS, 1000.0, ProbeResult.BAD, 3 * (2 + 2 * DEVIATION) / DEVIATION**2),
        (ENDS, -1000.0, ProbeResult.GOOD, -3 * (2 + 2 * DEVIATION) / DEVIATION**2),
        (REVERSED, 12.5, ProbeResult.GOOD, -1.5 / DEVIATION**2),
        (REVERSED, 11.5, ProbeResult.BAD, 1.5 / DEVIATION**2),
        (CONSTANT, 12.5, ProbeResult.BAD, 1.5 / 0.2**2),  # the floor: a twentieth of the distance
        (ENDS, ProbeResult.BAD, ProbeResult.SKIP, 0.0),
    ],
)
def test_run_weighs_by_its_distance(
    test: Metric, sample: float | ProbeResult, side: ProbeResult, weight: float
) -> None:
    result, ratio = test.weigh(sample)
    assert result is side
    assert ratio == pytest.approx(weight)


def test_noise_pools_both_ends() -> None:
    test = Metric(Measured(10.0, 3.0, 12), Measured(14.0, 4.0, 22), tested=1.0)
    assert test.deviation == pytest.approx(math.sqrt(12.5) * (1 + 1 / 8))
    assert test.middle == 12


@pytest.mark.parametrize(
    ("good", "bad", "worse", "runs"),
    [
        (LOW[:9], HIGH, 0.5, 10),
        (LOW, HIGH[:9], 0.5, 10),
        (LOW, HIGH, 0.3, 12),  # the ends differ by 4, surely by more than 3.05
        (LOW, HIGH, 0.6, 10),
        (LOW, LOW, 0.3, 13),
        (LOW, LOW, 0.03, 1210),
        ([0.0] * 10, [0.0] * 10, 0.3, 10),
    ],
)
def test_runs_that_separate_the_ends(good: list[float], bad: list[float], worse: float, runs: int) -> None:
    assert runs_needed(good, bad, worse) == runs


@pytest.mark.parametrize(("good", "bad"), [(LOW, HIGH), (HIGH, LOW)])
def test_tested_distance_is_the_least_that_is_sure(good: list[float], bad: list[float]) -> None:
    """2.0 each side of the middle, less the normal quantile of a quarter of the error."""
    test = calibrated(good, bad, 0.05, 0.95)
    error = math.hypot(level_of(LOW).error, level_of(HIGH).error)
    assert (test.good, test.bad) == (level_of(good), level_of(bad))
    assert test.tested == pytest.approx(2 - statistics.NormalDist().inv_cdf(0.9875) * error / 2)


def test_tested_distance_is_an_eighth_at_least() -> None:
    test = calibrated([10.0, 12.0] * 5, [11.6, 13.6] * 5, 0.05, 1 - 1e-9)
    assert test.tested == pytest.approx(1.6 / 8)


# The standard error of the difference of [m - 1, m + 1] * 5 and another such is sqrt(2) / 3.
@pytest.mark.parametrize(
    ("difference", "worse", "refused"),
    [
        (1.41, 0.0, True),  # within three standard errors: chance
        (1.42, 0.0, False),
        (-1.42, 0.0, False),
        (1.42, 0.33, False),  # 3.3 are wanted; 3.3 - 4 errors are reached
        (1.42, 0.34, True),
        (3.0, 0.48, False),
        (3.0, 0.49, True),
    ],
)
def test_difference_within_chance_is_refused(difference: float, worse: float, refused: bool) -> None:
    bad = [number + difference for number in LOW]
    if refused:
        with pytest.raises(MatrixError):
            calibrated(LOW, bad, worse, 0.95)
    else:
        assert calibrated(LOW, bad, worse, 0.95).bad.mean == pytest.approx(10 + difference)


@pytest.mark.parametrize(
    ("after", "whole", "text"),
    [
        (HIGH, True, "the step is 10 -> 14 (+40.0%), the ends differ by 40.0%"),
        ([number - 4 for number in LOW], True, "the step is 10 -> 6 (-40.0%), the ends differ by 40.0%"),
        ([number + 1.9 for number in LOW], True, "the step is 10 -> 11.9 (+19.0%), the ends differ by 40.0%"),
        ([number + 1.8 for number in LOW], False, "the step is 10 -> 11.8 (+18.0%), the ends differ by 40.0%"),
        ([number + 6.1 for number in LOW], True, "the step is 10 -> 16.1 (+61.0%), the ends differ by 40.0%"),
        ([number + 6.2 for number in LOW], False, "the step is 10 -> 16.2 (+62.0%), the ends differ by 40.0%"),
        (LOW[:2], True, "the step is 10 -> 10 (+0.0%), the ends differ by 40.0%"),
    ],
)
def test_step_between_neighbours_is_the_whole(after: list[float], whole: bool, text: str) -> None:
    """Within three standard errors: 3 * 2 * 1.11 / sqrt(10) = 2.1 with ten runs of each, 4.7 with two."""
    assert one_step(ENDS, LOW, after) == (whole, text)


def test_step_from_zero_has_a_percentage() -> None:
    ends = Metric(Measured(0.0, 1.0, 20), Measured(4.0, 1.0, 20), tested=1.5)
    assert one_step(ends, [0.0] * 10, [4.0] * 10) == (
        True,
        "the step is 0 -> 4 (+400.0%), the ends differ by 400.0%",
    )
