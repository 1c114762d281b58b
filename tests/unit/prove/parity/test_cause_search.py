"""Tests of matrix.prove.parity.cause_search."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from matrix.kit.parity.factors import Point
from matrix.prove.parity.cause_search import SECOND_SEED, CauseSearch, Certainty, JudgePoint
from matrix.prove.parity.points import PointResult, Space, contains
from tests.unit.prove.parity.fakes import LOSS, NORM, REFUSAL, SINKS, Planted

MLA = Point.parse("attention=mla tp=2")


def search(judge: JudgePoint, *, points: int = 60, **options: Any) -> CauseSearch:
    numbers = count()
    return CauseSearch(judge, Space("0.19.2"), 1, lambda: next(numbers) > points * 20, **options)


def test_planted_causes_are_found_and_nothing_else() -> None:
    judge = Planted({SINKS: NORM, MLA: LOSS})
    causes = {cause.point: cause for cause in search(judge)}
    assert {SINKS, MLA, REFUSAL} == causes.keys()
    assert causes[SINKS].certainty is causes[MLA].certainty is Certainty.CONFIRMED
    assert causes[REFUSAL].certainty is Certainty.REFUSED
    assert causes[SINKS].comparison.deviations[0] == NORM


def test_cause_is_not_met_twice() -> None:
    judge = Planted()
    met = [cause.met for cause in search(judge)]
    assert sum(contains(point, SINKS) for point in met) == 1


def test_deviation_with_one_seed_alone_is_suspected() -> None:
    judge = Planted(seeds=(1,))
    (cause,) = [cause for cause in search(judge) if cause.deviates]
    assert cause.certainty is Certainty.SUSPECTED
    assert not cause.certainty.is_break
    assert (SINKS, 1 + SECOND_SEED) in judge.asked


@pytest.mark.parametrize("twice", [True, False])
def test_second_seed_alone_makes_a_suspicion(twice: bool) -> None:
    causes = [cause for cause in search(Planted(seeds=(1 + SECOND_SEED,)), twice=twice) if cause.deviates]
    assert [cause.certainty for cause in causes] == [Certainty.SUSPECTED] * len(causes)
    assert bool(causes) is twice


def test_known_layout_is_judged_first_and_then_avoided() -> None:
    judge = Planted()
    run = search(judge, known={SINKS: "sinks"})
    (cause,) = [cause for cause in run if cause.deviates]
    assert (cause.point, cause.certainty, cause.entry) == (SINKS, Certainty.KNOWN, "sinks")
    assert [point for point, _ in judge.asked if contains(point, SINKS)] == [SINKS]


def test_known_layout_that_is_equal_has_vanished() -> None:
    judge = Planted({})
    run = search(judge, known={MLA: "mla"})
    (cause,) = [cause for cause in run if cause.entry]
    assert (cause.certainty, cause.deviates) == (Certainty.VANISHED, False)
    assert sum(contains(point, MLA) for point, _ in judge.asked) > 1  # it is not avoided


def test_known_layout_without_an_answer_is_not_reported() -> None:
    """A refusal of the layout decides nothing about the failure."""
    causes = list(search(Planted({}), known={REFUSAL: "recompute"}))
    assert not [cause for cause in causes if cause.entry]


def test_each_cover_has_the_next_seed() -> None:
    judge = Planted({}, ())
    run = CauseSearch(judge, Space("0.19.2"), 1, covers=2)
    assert not list(run)
    layouts = {seed: {point for point, asked in judge.asked if asked == seed} for seed in (1, 2)}
    assert sum(map(len, layouts.values())) == run.equal == len(judge.asked)
    assert len(layouts[1] & layouts[2]) < 10


def test_what_never_answers_is_undecided() -> None:
    def judge(point: Point, seed: int) -> PointResult:
        return PointResult(point, seed, "timeout" if point["cp"] != 1 else "equal", text="no answer")

    (cause,) = search(judge)
    assert cause.point == Point.parse("cp=2")
    assert cause.certainty is Certainty.UNDECIDED


def test_search_ends_where_plain_point_not_equal() -> None:
    def judge(point: Point, seed: int) -> PointResult:
        return PointResult(point, seed, "harness", text="all gradients are zero")

    causes = list(search(judge))
    assert [cause.point for cause in causes] == [Point()]


def test_equal_points_are_judged_once_and_counted() -> None:
    judge = Planted({}, ())
    run = CauseSearch(judge, Space("0.19.2"), 1)
    assert list(run) == []
    assert run.equal == run.judged == len(judge.asked) == len(set(judge.asked))
    assert not run.uncovered


def test_search_ends_when_the_time_is_up() -> None:
    judge = Planted()
    run = CauseSearch(judge, Space("0.19.2"), 1, lambda: len(judge.asked) >= 5)
    list(run)
    assert 5 <= len(judge.asked) <= 7
