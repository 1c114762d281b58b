"""Tests of matrix.parity.cause_search."""

from __future__ import annotations

from itertools import count

from matrix.kit.parity.factors import Point
from matrix.parity.cause_search import SECOND_SEED, Certainty, Search, known_as
from matrix.parity.judgements import Judgement
from matrix.parity.points import Cover, Space, contains
from tests.unit.parity.fakes import LOSS, NORM, REFUSAL, SINKS, Planted

MLA = Point.parse("attention=mla tp=2")


def search(judge, *, points=60, **options):
    numbers = count()
    return Search(judge, Cover(Space("0.19.2"), 1), lambda: next(numbers) > points * 20, **options)


def test_planted_causes_are_found_and_nothing_else():
    judge = Planted({SINKS: NORM, MLA: LOSS})
    causes = {cause.point: cause for cause in search(judge)}
    assert {SINKS, MLA, REFUSAL} == causes.keys()
    assert causes[SINKS].certainty is causes[MLA].certainty is Certainty.CONFIRMED
    assert causes[REFUSAL].certainty is Certainty.REFUSED
    assert causes[SINKS].judgement.deviations[0] == NORM


def test_cause_is_not_met_twice():
    judge = Planted()
    met = [cause.met for cause in search(judge)]
    assert sum(contains(point, SINKS) for point in met) == 1


def test_deviation_with_one_seed_alone_is_suspected():
    judge = Planted(seeds=(1,))
    (cause,) = [cause for cause in search(judge) if cause.deviates]
    assert cause.certainty is Certainty.SUSPECTED
    assert not cause.certainty.is_break
    assert (SINKS, 1 + SECOND_SEED) in judge.asked


def test_cause_of_the_catalog_is_known():
    causes = list(search(Planted(), entries={"sinks tp2": Point.parse("tp=2")}))
    (cause,) = [cause for cause in causes if cause.deviates]
    assert (cause.certainty, cause.entry) == (Certainty.KNOWN, "sinks tp2")
    assert known_as(Point.parse("cp=2"), {"sinks tp2": Point.parse("tp=2")}) == ""


def test_what_never_answers_is_undecided():
    def judge(point: Point, seed: int) -> Judgement:
        return Judgement(point, seed, "timeout" if point["cp"] != 1 else "equal", text="no answer")

    (cause,) = search(judge)
    assert cause.point == Point.parse("cp=2")
    assert cause.certainty is Certainty.UNDECIDED


def test_search_ends_where_the_plain_point_is_not_equal():
    def judge(point: Point, seed: int) -> Judgement:
        return Judgement(point, seed, "harness", text="all gradients are zero")

    causes = list(search(judge))
    assert [cause.point for cause in causes] == [Point()]


def test_equal_points_are_judged_once_and_counted():
    judge = Planted({}, ())
    run = Search(judge, Cover(Space("0.19.2"), 1))
    assert list(run) == []
    assert run.equal == run.judged == len(judge.asked) == len(set(judge.asked))
    assert not run.cover.uncovered


def test_search_ends_when_the_time_is_up():
    judge = Planted()
    run = Search(judge, Cover(Space("0.19.2"), 1), lambda: len(judge.asked) >= 5)
    list(run)
    assert 5 <= len(judge.asked) <= 7
