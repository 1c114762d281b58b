"""Judge a test, or a number, by its runs under two stacks: what changes, what is noise, what further runs must show.

The odds of a claim are an e-value: the probability of all runs if both stacks have rates of their own, divided by the
greatest one if they share a rate. A claim needs claims/error of them. By Ville's inequality, two equal stacks (A/A)
then have a wrong claim with a probability of at most `error`, over all tests and regardless of the number of runs.
Noisy numbers are judged by the ratio of each pair: of equal stacks it is as often above 1 as below. Pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from matrix.prove.bisection.noise import DOUBT, level_of

MOST: Final = 120  # runs under each stack: a failure that shows in 3 of 10 runs is found among 300 tests
PAIRS: Final = 40  # of a number, and runs of a test that fails in each of them
TRIES: Final = 3  # runs under each stack, where none had a result because of the network, the disk or a limit
LEAST_PAIRS: Final = 5  # of a noisy number: of fewer, its interval is too narrow
# Shares of the error: of the claim that a test fails more or less often, and that it fails in another way.
FAILING: Final = 0.8
OTHERWISE: Final = 0.2
# The weights of what may be: always and never, the reverse, any two rates, never and a rate, a rate and never.
WEIGHTS: Final = (0.4, 0.4, 0.1, 0.05, 0.05)
BETS: Final = (5.0, 20.0, 80.0, 400.0)  # on the logarithm of a ratio: the largest gains from 0.5 %, the least from 20 %


class Ending(str, Enum):
    """How a test ended in one run."""

    PASSED = "passed"
    FAILED = "failed"
    LIMIT = "limit"  # the deadline passed, or it was killed for memory
    OUTSIDE = "outside"  # the network or the disk
    SKIPPED = "skipped"  # or missing in the file of results


@dataclass(frozen=True)
class RunEnd:
    """The result of a test in one run: its signature, the catalog's entry that has it, and its text."""

    ending: Ending
    signature: str = ""
    known: str = ""
    text: str = ""

    @property
    def fails(self) -> bool:
        """Return whether it counts as a failure."""
        return self.ending in (Ending.FAILED, Ending.LIMIT)


class StackEffect(str, Enum):
    """What a test or a number does between two stacks; the most urgent first."""

    NEW = "new"
    CHANGED = "changed"
    WORSE = "worse"
    DRIFT = "drift"
    UNDECIDED = "undecided"
    FLAKY = "flaky"
    INFRASTRUCTURE = "infrastructure"
    NOT_RUN = "not run"
    FIXED = "fixed"
    BETTER = "better"
    PRE_EXISTING = "pre-existing"
    NOTHING = "nothing"


BREAKS: Final = frozenset({StackEffect.NEW, StackEffect.CHANGED, StackEffect.WORSE})


@dataclass(frozen=True)
class JudgedRuns:
    """What the runs of a test or a number show. `again`: further runs may change it.

    `failures` and `runs` are of the old and the new stack; `signature` is the one under the new stack, of what is fixed
    the old one. `values` are the means of a number, `interval` the ends of their ratio.
    """

    change: StackEffect
    failures: tuple[int, int] = (0, 0)
    runs: tuple[int, int] = (0, 0)
    signature: str = ""
    before: str = ""
    known: str = ""
    text: str = ""
    again: bool = False
    values: tuple[float, float] | None = None
    interval: tuple[float, float] | None = None

    @property
    def claimed(self) -> bool:
        """Return whether a test fails under one stack alone, or in another way."""
        return self.change in (StackEffect.NEW, StackEffect.CHANGED, StackEffect.FIXED)


@dataclass(frozen=True)
class Proof:
    """What a comparison demands: `tests` and `numbers` share the error; a ratio within `matters` of 1 is no change."""

    tests: int = 1
    numbers: int = 0
    error: float = 0.05
    matters: float = 0.02
    most: int = MOST

    def odds(self, share: float) -> float:
        """Return the odds that a claim needs which may take this share of the error of its test or number."""
        return (self.tests + self.numbers) / (share * self.error)


def odds(failures: tuple[int, int], runs: tuple[int, int]) -> float:
    """Return how much likelier the runs of two stacks are with a rate for each than with any rate for both."""
    of_rates = [_predictive(*side) for side in zip(failures, runs, strict=True)]
    never = [0.0 if not failed else -math.inf for failed in failures]
    always = [0.0 if failed == count else -math.inf for failed, count in zip(failures, runs, strict=True)]
    cases = (
        never[0] + always[1],
        always[0] + never[1],
        sum(of_rates),
        never[0] + of_rates[1],
        of_rates[0] + never[1],
    )
    likelihood = sum(weight * math.exp(case) for weight, case in zip(WEIGHTS, cases, strict=True))
    return likelihood / math.exp(_greatest(sum(failures), sum(runs)))


def _predictive(failures: int, runs: int) -> float:
    """Return the logarithm of the probability of such runs, before their rate is known: Jeffreys' prior."""
    passes = runs - failures
    return math.lgamma(failures + 0.5) + math.lgamma(passes + 0.5) - math.lgamma(runs + 1) - math.log(math.pi)


def _greatest(failures: int, runs: int) -> float:
    """Return the logarithm of the probability of such runs with the rate that fits them best."""
    parts = (failures, runs - failures)
    return sum(part * math.log(part / runs) for part in parts if part)


def rounds_needed(failures: tuple[int, int], runs: tuple[int, int], proof: Proof) -> float:
    """Return after how many rounds a test is decided, if they go on as before."""
    both = zip(failures, runs, strict=True)
    gain = sum(_greatest(*side) for side in both) - _greatest(sum(failures), sum(runs))
    return max(runs) * math.log(proof.odds(FAILING)) / gain if gain > 0 else math.inf


def judge_test(old: Sequence[RunEnd], new: Sequence[RunEnd], proof: Proof) -> JudgedRuns:
    """Return what the runs of one test show. Runs without a result count for nothing."""
    sides = _counted(old, new)
    left_out = [run for side in (old, new) for run in side if run.ending in (Ending.LIMIT, Ending.OUTSIDE)]
    runs, failures = (len(sides[0]), len(sides[1])), (_failing(sides[0]), _failing(sides[1]))
    rounds = max(len(old), len(new))
    if not all(runs):
        text = next((run.text for run in left_out), "")
        change = StackEffect.INFRASTRUCTURE if left_out else StackEffect.NOT_RUN
        return JudgedRuns(change, failures, runs, text=text, again=bool(left_out) and rounds < TRIES)
    if failures == runs:
        return _fails_always(sides, proof, again=rounds < min(proof.most, PAIRS))
    if not any(failures):
        outside = [run for run in left_out if run not in sides[0] and run not in sides[1]]
        change = StackEffect.INFRASTRUCTURE if outside else StackEffect.NOTHING
        return JudgedRuns(change, failures, runs, text=outside[0].text if outside else "")
    rises = failures[1] * runs[0] > failures[0] * runs[1]
    shown = next(run for run in (*sides[rises], *sides[not rises]) if run.fails)
    finding = JudgedRuns(StackEffect.UNDECIDED, failures, runs, shown.signature, known=shown.known, text=shown.text)
    if odds(failures, runs) >= proof.odds(FAILING):
        return replace(finding, change=StackEffect.NEW if rises else StackEffect.FIXED)
    vary = [0 < failed < count for failed, count in zip(failures, runs, strict=True)]
    over = rounds >= proof.most or (max(runs) > 1 and rounds_needed(failures, runs, proof) > proof.most)
    if all(vary) or (over and any(vary)):
        return replace(finding, change=StackEffect.FLAKY)
    return replace(finding, again=not over)


def _counted(old: Sequence[RunEnd], new: Sequence[RunEnd]) -> tuple[list[RunEnd], list[RunEnd]]:
    """Return the runs that count; of a limit those alone that each run of a stack reached."""
    sides = [[run for run in side if run.ending not in (Ending.OUTSIDE, Ending.SKIPPED)] for side in (old, new)]
    limits = [[run.ending is Ending.LIMIT for run in side] for side in sides]
    total = all(all(side) or not any(side) for side in limits)
    kept = [[run for run in side if total or run.ending is not Ending.LIMIT] for side in sides]
    return kept[0], kept[1]


def _failing(side: Sequence[RunEnd]) -> int:
    return sum(run.fails for run in side)


def _fails_always(sides: tuple[list[RunEnd], list[RunEnd]], proof: Proof, *, again: bool) -> JudgedRuns:
    """Return whether a test that fails in each run fails as before.

    The first run under the new stack chooses the signature that is counted, so it counts for nothing itself.
    """
    runs, signature = (len(sides[0]), len(sides[1])), sides[1][0].signature
    usual = Counter(run.signature for run in sides[0]).most_common(1)[0][0]
    finding = JudgedRuns(
        StackEffect.PRE_EXISTING, runs, runs, signature, before=usual, known=sides[1][0].known, text=sides[1][0].text
    )
    has = [[run.signature == signature for run in side] for side in sides]
    if any(has[0]):
        return finding
    counts, counted = (sum(has[0]), sum(has[1]) - 1), (runs[0], runs[1] - 1)
    if odds(counts, counted) >= proof.odds(OTHERWISE):
        return replace(finding, change=StackEffect.CHANGED)
    if {run.signature for run in sides[0]} & {run.signature for run in sides[1]}:
        return finding
    return replace(finding, change=StackEffect.UNDECIDED, again=again)


def judge_number(
    old: Sequence[float], new: Sequence[float], proof: Proof, *, more_is_better: bool = False
) -> JudgedRuns:
    """Return what the pairs of a number show, each taken in turns under the old and the new stack."""
    pairs = list(zip(old, new, strict=False))
    if not pairs:
        return JudgedRuns(StackEffect.NOT_RUN)
    runs = len(pairs), len(pairs)
    if not all(map(math.isfinite, (*old, *new))):
        ends = [[_finite_end(number) for number in side] for side in (old, new)]
        finding = judge_test(ends[0], ends[1], proof)
        return finding if finding.change is not StackEffect.NEW else replace(finding, change=StackEffect.WORSE)
    values = level_of([pair[0] for pair in pairs]).mean, level_of([pair[1] for pair in pairs]).mean
    if len({*old}) == len({*new}) == 1:
        return _constant(values, runs, proof, more_is_better=more_is_better)
    ratios = [_ratio(*pair) for pair in pairs]
    level = level_of(ratios)
    low, high = level.mean - DOUBT * level.error, level.mean + DOUBT * level.error
    ends_of_ratio = math.exp(min(low, 700)), math.exp(min(high, 700))
    change = StackEffect.NOTHING
    claims = len(pairs) >= LEAST_PAIRS and bet(ratios) >= proof.odds(1 / 3)
    if claims and abs(math.expm1(level.mean)) >= proof.matters:
        change = StackEffect.BETTER if (level.mean > 0) == more_is_better else StackEffect.WORSE
    within = len(pairs) >= LEAST_PAIRS and 1 - proof.matters < ends_of_ratio[0] and ends_of_ratio[1] < 1 + proof.matters
    if change is StackEffect.NOTHING and not within:
        change = StackEffect.UNDECIDED
    again = change is StackEffect.UNDECIDED and len(pairs) < min(proof.most, PAIRS)
    return JudgedRuns(change, runs=runs, values=values, interval=ends_of_ratio, again=again)


def _finite_end(number: float) -> RunEnd:
    return RunEnd(Ending.PASSED) if math.isfinite(number) else RunEnd(Ending.FAILED, str(number), text=str(number))


def _constant(values: tuple[float, float], runs: tuple[int, int], proof: Proof, *, more_is_better: bool) -> JudgedRuns:
    """Return what a number shows that is the same in each run of a stack. The first run chooses what is counted."""
    change, ratio = StackEffect.NOTHING, _ratio(*values)
    if values[0] != values[1]:
        certain = odds((0, runs[1] - 1), (runs[0], runs[1] - 1)) >= proof.odds(1 / 3)
        moved = StackEffect.BETTER if (ratio > 0) == more_is_better else StackEffect.WORSE
        moved = StackEffect.DRIFT if abs(math.expm1(min(ratio, 700))) < proof.matters else moved
        change = moved if certain else StackEffect.UNDECIDED
    interval = (math.exp(min(ratio, 700)),) * 2
    again = change is StackEffect.UNDECIDED and max(runs) < min(proof.most, PAIRS)
    return JudgedRuns(change, runs=runs, values=values, interval=interval, again=again)


def _ratio(old: float, new: float) -> float:
    """Return the logarithm of new / old; of numbers without one, by how much of the larger they differ."""
    if old > 0 and new > 0:
        return math.log(new / old)
    return (new - old) / (max(abs(old), abs(new)) or 1.0)


def bet(ratios: Sequence[float]) -> float:
    """Return the odds that logarithms of ratios, which equal stacks have as often above 0 as below, lean to a side."""
    sides = [-size if down else size for size in BETS for down in (False, True)]
    return sum(math.exp(sum(size * one - _log_cosh(size * one) for one in ratios)) for size in sides) / len(sides)


def _log_cosh(value: float) -> float:
    return abs(value) + math.log1p(math.exp(-2 * abs(value))) - math.log(2)
