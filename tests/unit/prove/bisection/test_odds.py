"""What the runs of a test or a number show under two stacks, and how often two equal stacks get a claim."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.prove.bisection.odds import (
    BREAKS,
    PAIRS,
    TRIES,
    Ending,
    JudgedRuns,
    Proof,
    RunEnd,
    StackEffect,
    bet,
    judge_number,
    judge_test,
    odds,
    rounds_needed,
)

P, A, B = RunEnd(Ending.PASSED), RunEnd(Ending.FAILED, "ValueError: a"), RunEnd(Ending.FAILED, "KeyError: b")
T, N, S = RunEnd(Ending.LIMIT, "time-out"), RunEnd(Ending.OUTSIDE, text="no network"), RunEnd(Ending.SKIPPED)
ENDS = st.lists(st.sampled_from([P, A, B, T, N, S]), max_size=12)
CLAIMS = frozenset({*BREAKS, StackEffect.FIXED, StackEffect.BETTER, StackEffect.DRIFT})


@pytest.mark.parametrize(
    ("old", "new", "change", "again"),
    [
        ([P], [P], StackEffect.NOTHING, False),
        ([P], [A], StackEffect.UNDECIDED, True),
        ([P, P, P], [A, A, A], StackEffect.NEW, False),
        ([A, A, A], [P, P, P], StackEffect.FIXED, False),
        ([A], [A], StackEffect.PRE_EXISTING, False),
        ([A], [B], StackEffect.UNDECIDED, True),
        ([A] * 5, [B] * 5, StackEffect.CHANGED, False),
        ([A, B], [B, A], StackEffect.PRE_EXISTING, False),
        ([P, A], [A, P], StackEffect.FLAKY, False),
        ([P, P], [A, P], StackEffect.UNDECIDED, True),
        ([P] * 29, [A, *[P] * 28], StackEffect.FLAKY, False),  # of 120 runs none would decide
        ([P] * 20, [*[A] * 10, *[P] * 10], StackEffect.NEW, False),
        ([A, P, A, P], [A] * 4, StackEffect.UNDECIDED, True),
        ([P], [N], StackEffect.INFRASTRUCTURE, True),
        ([P] * TRIES, [N] * TRIES, StackEffect.INFRASTRUCTURE, False),
        ([P, P], [N, P], StackEffect.INFRASTRUCTURE, False),
        ([P], [T], StackEffect.UNDECIDED, True),
        ([P, P], [T, P], StackEffect.INFRASTRUCTURE, False),
        ([P, P, P], [T, T, T], StackEffect.NEW, False),  # a hang in each run is no accident
        ([T], [T], StackEffect.PRE_EXISTING, False),
        ([P], [S], StackEffect.NOT_RUN, False),
        ([], [P], StackEffect.NOT_RUN, False),
        ([S, P, P, P], [A, A, A], StackEffect.NEW, False),
    ],
)
def test_runs_of_a_test_decide(old: list[RunEnd], new: list[RunEnd], change: StackEffect, again: bool) -> None:
    finding = judge_test(old, new, Proof())

    assert (finding.change, finding.again) == (change, again)


def test_rare_break_among_many_is_new() -> None:
    """It fails in 3 of 10 runs of the new stack alone, and needs more runs than a pair of numbers gets."""
    old, new = list[RunEnd](), list[RunEnd]()
    finding = judge_test([P], [A], Proof(300))
    while finding.again:
        old.append(P)
        new.append(A if len(new) % 10 in (0, 4, 7) else P)
        finding = judge_test(old, new, Proof(300))

    assert finding.change is StackEffect.NEW
    assert PAIRS < len(new) < 70


def test_noise_ends_earlier_than_a_rate() -> None:
    """What fails in each run in ever another way, and a number that leans to no side, run no further."""
    others = [RunEnd(Ending.FAILED, f"ValueError: {number}") for number in range(2 * PAIRS)]
    noise = [100.0 + 9 * (number % 3) for number in range(2 * PAIRS)]
    for count, again in ((PAIRS - 1, True), (PAIRS, False)):
        assert judge_test(others[:count], others[PAIRS : PAIRS + count], Proof()).again is again
        assert judge_number(noise[:count], noise[1 : 1 + count], Proof(0, 1)).again is again


def test_more_tests_demand_more_runs() -> None:
    """The error is that of the whole comparison."""
    needed = {}
    for tests in (1, 10, 300):
        decided = (n for n in range(1, 20) if judge_test([P] * n, [A] * n, Proof(tests)).change is StackEffect.NEW)
        needed[tests] = next(decided)
    assert needed == {1: 3, 10: 5, 300: 8}


@given(st.floats(0.001, 0.999), st.integers(1, 7), st.integers(1, 7))
def test_odds_of_equal_stacks_average_one(rate: float, old: int, new: int) -> None:
    """By Markov's inequality, a claim of 1/error odds then has a probability of at most `error`."""

    def probability(failed: int, runs: int) -> float:
        return math.comb(runs, failed) * rate**failed * (1 - rate) ** (runs - failed)

    both = itertools.product(range(old + 1), range(new + 1))
    assert sum(probability(a, old) * probability(b, new) * odds((a, b), (old, new)) for a, b in both) <= 1 + 1e-9


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9), st.sampled_from([25.0, 250.0, 7500.0]))
def test_odds_hold_where_the_rate_changes(rates: list[float], demanded: float) -> None:
    """A test that runs alone after its first round may fail more often, or less: under equal stacks in the same way."""
    counts, claimed = {(0, 0): 1.0}, 0.0
    for rounds, rate in enumerate(rates, start=1):
        later = defaultdict[tuple[int, int], float](float)
        for (old, new), weight in counts.items():
            for one, other in itertools.product((0, 1), repeat=2):
                later[old + one, new + other] += weight * math.prod(
                    rate if fails else 1 - rate for fails in (one, other)
                )
        counts = {both: weight for both, weight in later.items() if odds(both, (rounds, rounds)) < demanded}
        claimed += sum(later.values()) - sum(counts.values())
    assert claimed <= 1 / demanded


@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 12), st.integers(1, 300))
def test_rounds_needed_are_enough(old: int, new: int, runs: int, tests: int) -> None:
    """If further rounds go on as before, so many decide: the odds are at most as large as this estimate allows."""
    failures, proof = (min(old, runs), min(new, runs)), Proof(tests)
    needed = rounds_needed(failures, (runs, runs), proof)
    if odds(failures, (runs, runs)) >= proof.odds(0.8):
        assert needed <= runs + 1e-9


@given(st.lists(st.floats(0, 2), min_size=1, max_size=8))
def test_bets_on_symmetric_ratios_average_one(sizes: list[float]) -> None:
    flips = list(itertools.product((-1, 1), repeat=len(sizes)))
    mean = sum(bet([sign * size for sign, size in zip(signs, sizes, strict=True)]) for signs in flips) / len(flips)

    assert mean == pytest.approx(1)


@given(ENDS, ENDS, st.integers(1, 300))
def test_swapped_stacks_swap_the_claim(old: list[RunEnd], new: list[RunEnd], tests: int) -> None:
    swapped = {StackEffect.NEW: StackEffect.FIXED, StackEffect.FIXED: StackEffect.NEW}
    one, other = (judge_test(*sides, Proof(tests)) for sides in ((old, new), (new, old)))

    if {one.change, other.change} & swapped.keys():
        assert swapped.get(one.change) is other.change
    assert one.runs == other.runs[::-1]


@given(ENDS, ENDS)
def test_decisions_end(old: list[RunEnd], new: list[RunEnd]) -> None:
    """What is asked of a test ends at the most runs."""
    proof = Proof(most=max(len(old) + TRIES, len(new)))
    assert not judge_test([*old, *[S] * TRIES], new, proof).again


def decided(old: float, new: float, source: random.Random, proof: Proof) -> JudgedRuns:
    ends: tuple[list[RunEnd], list[RunEnd]] = ([], [])
    finding = JudgedRuns(StackEffect.UNDECIDED, again=True)
    while finding.again:
        for side, rate in zip(ends, (old, new), strict=True):
            side.append(A if source.random() < rate else P)
        finding = judge_test(*ends, proof)
    return finding


def test_equal_stacks_get_no_claim() -> None:
    """A/A: 20 comparisons of 300 tests, of which ten are flaky; at 5 % one of them may have a claim."""
    source = random.Random(58)
    claims = [
        finding.change
        for _ in range(20)
        for rate in (0.01, 0.05, 0.1, 0.2, 0.3, 0.3, 0.5, 0.7, 0.9, 0.99)
        if (finding := decided(rate, rate, source, Proof(300))).change in CLAIMS
    ]
    assert len(claims) <= 1, Counter(claims)


def numbers(effect: float, noise: float, source: random.Random, proof: Proof) -> JudgedRuns:
    old: list[float] = []
    new: list[float] = []
    finding = JudgedRuns(StackEffect.UNDECIDED, again=True)
    while finding.again:
        old.append(source.gauss(100, noise))
        new.append(source.gauss(100 * effect, noise))
        finding = judge_number(old, new, proof)
    return finding


def test_equal_numbers_get_no_claim() -> None:
    source, proof = random.Random(58), Proof(0, 100)
    found = [numbers(1, noise, source, proof).change for noise in (0.2, 1, 2, 5) for _ in range(25)]

    assert not CLAIMS & {*found}


@pytest.mark.parametrize(("noise", "most"), [(0.2, 8), (1, 12), (2, 30)])
def test_slow_down_of_5_percent_is_found(noise: float, most: int) -> None:
    source = random.Random(58)
    findings = [numbers(1.05, noise, source, Proof(0, 1)) for _ in range(50)]

    assert {finding.change for finding in findings} == {StackEffect.WORSE}
    assert max(finding.runs[0] for finding in findings) <= most


@pytest.mark.parametrize(
    ("old", "new", "better", "change"),
    [
        ([2.5], [2.5], False, StackEffect.NOTHING),
        ([2.5], [2.6], False, StackEffect.UNDECIDED),
        ([2.5] * 5, [2.5001] * 5, False, StackEffect.DRIFT),
        ([2.5] * 5, [2.7] * 5, False, StackEffect.WORSE),
        ([2.5] * 5, [2.3] * 5, False, StackEffect.BETTER),
        ([2.5] * 5, [2.3] * 5, True, StackEffect.WORSE),
        ([0.0] * 5, [1.0] * 5, False, StackEffect.WORSE),
        ([-1.0] * 5, [-1.5] * 5, False, StackEffect.BETTER),
        ([2.5] * 3, [math.nan] * 3, False, StackEffect.WORSE),
        ([math.inf], [math.inf], False, StackEffect.PRE_EXISTING),
        ([], [], False, StackEffect.NOT_RUN),
        ([1.0, 2.0, 1.0, 2.0, 1.0], [2.0, 1.0, 2.0, 1.0, 2.0], False, StackEffect.UNDECIDED),
    ],
)
def test_pairs_of_a_number_decide(old: list[float], new: list[float], better: bool, change: StackEffect) -> None:
    assert judge_number(old, new, Proof(1, 0), more_is_better=better).change is change
