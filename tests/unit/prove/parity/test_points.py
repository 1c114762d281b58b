"""Tests of matrix.prove.parity.points."""

from __future__ import annotations

from itertools import combinations, count, islice
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.kit.parity.factors import MOST_RANKS, Deviation, Point
from matrix.prove.parity.points import (
    DEVIATES,
    EQUAL,
    REFUSED,
    SECOND_SEED,
    CauseSearch,
    Certainty,
    Cover,
    JudgePoint,
    PointResult,
    Space,
    certainty,
    contains,
    denser,
)
from tests.profiles import tries
from tests.unit.prove.parity.fakes import LOSS, NORM, REFUSAL, SINKS, Planted, few_factors

CORES = ("0.5.0", "0.12.0", "0.16.1", "0.19.2")


def taken(cover: Cover, number: int) -> list[Point]:
    points = []
    for point in islice(cover, number):
        cover.judged(point)
        points.append(point)
    return points


@pytest.mark.parametrize("core", CORES)
def test_points_are_possible_and_of_the_release(core: str) -> None:
    points = taken(Cover(Space(core), 1), 15)
    assert points[0] == Point()
    assert all(not point.problems() and point.supported(core) and point.ranks <= MOST_RANKS for point in points)


def test_points_depend_on_the_seed_alone() -> None:
    first, again, other = (taken(Cover(Space("0.19.2"), seed), 12) for seed in (7, 7, 8))
    assert first == again != other


def test_nearly_all_pairs_are_covered_by_few_points() -> None:
    cover = Cover(Space("0.16.1"), 1)
    before = len(cover.uncovered)
    points = taken(cover, 80)
    pairs = {frozenset(pair) for point in points for pair in combinations(point.items(), 2)}
    assert len(cover.uncovered) < before * 0.06
    assert not cover.uncovered & pairs


def test_modules_are_chosen_where_given() -> None:
    """What needs them has its default elsewhere."""
    names = ("modules", "cp_comm")
    assert [Space("0.19.2").choices[name] for name in names] == [["local"], ["p2p"]]
    space = Space("0.19.2", given=Point.parse("modules=te"))
    assert [space.choices[name] for name in names] == [["te"], ["p2p", "a2a", "all_gather"]]


def test_cover_ends() -> None:
    cover = Cover(Space("0.4.0"), 1)
    assert len(taken(cover, 1000)) < 1000
    assert not cover.uncovered


def test_avoided_cause_is_in_no_later_point() -> None:
    space = Space("0.19.2")
    cover, cause = Cover(space, 3), Point.parse("experts=4 dp=2")
    for number, point in enumerate(islice(cover, 40)):
        if number >= 10:
            assert not contains(point, cause)
        if number == 9:
            space.avoided.append(cause)
        cover.judged(point)


def test_cause_of_what_is_resumed_is_avoided() -> None:
    space = Space("0.19.2", [Point.parse("sequence_parallel=on tp=2")])
    assert space.avoids(Point.parse("optimizer=adam resume=tp"))
    assert not space.avoids(Point.parse("optimizer=adam resume=pp"))


def test_a_larger_size_contains_a_smaller_one() -> None:
    assert contains(Point.parse("tp=4 bias=on"), Point.parse("tp=2"))
    assert not contains(Point.parse("tp=2"), Point.parse("tp=4"))
    assert not contains(Point.parse("attention=mla"), Point.parse("attention=gqa"))
    assert not contains(Point.parse("tp=2"), Point())


@tries(20)
@given(st.integers(0, 2**32))
def test_denser_points_keep_what_was_chosen(seed: int) -> None:
    point = Point.parse("experts=4 dp=2")
    dense = denser(Space("0.19.2"), point, 0.5, Random(seed))
    assert contains(dense, point)
    assert not dense.problems()


@pytest.mark.parametrize("text", ["optimizer=adam resume=pp", "experts=4 tp=2 sequence_parallel=on"])
def test_given_choices_are_in_every_point(text: str) -> None:
    given = Point.parse(text)
    points = taken(Cover(Space("0.19.2", given=given), 3), 25)
    assert points[0] == given
    assert all(contains(point, given) and not point.problems() for point in points[1:])
    assert len(set(points)) > 20


def test_given_choices_that_deviate_end_the_search() -> None:
    numbers = count()
    run = CauseSearch(Planted(), few_factors(given=SINKS), 1, lambda: next(numbers) > 100)
    assert [cause.point for cause in run] == [SINKS]


def test_repair_fails_where_the_fixed_factors_exclude_it() -> None:
    space = Space("0.19.2")
    assert space.repaired(Point.parse("tp=4 pp=4"), ("tp", "pp"), Random(1)) is None
    repaired = space.repaired(Point.parse("ep=2"), ("ep",), Random(1))
    assert repaired is not None
    assert repaired["experts"] == 4


MLA = Point.parse("attention=mla tp=2")


def search(judge: JudgePoint, *, points: int = 60, **options: Any) -> CauseSearch:
    numbers = count()
    return CauseSearch(judge, few_factors(), 1, lambda: next(numbers) > points * 20, **options)


def test_planted_causes_are_found_and_nothing_else() -> None:
    judge = Planted({SINKS: NORM, MLA: LOSS})
    causes = {cause.point: cause for cause in search(judge)}
    assert {SINKS, MLA, REFUSAL} == causes.keys()
    assert causes[SINKS].certainty is causes[MLA].certainty is Certainty.CONFIRMED
    assert causes[REFUSAL].certainty is Certainty.REFUSED
    assert causes[SINKS].comparison.deviations[0] == NORM


def test_cause_is_not_met_twice() -> None:
    judge = Planted()
    assert sum(contains(cause.point, SINKS) for cause in search(judge)) == 1


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


LOSS_ROW = PointResult(MLA, 1, DEVIATES, (LOSS,))
NORM_ROW = PointResult(MLA, 1, DEVIATES, (NORM,))
EQUAL_ROW = PointResult(MLA, 1, EQUAL)
REFUSED_ROW = PointResult(MLA, 1, REFUSED, text="no attention in float32")


@pytest.mark.parametrize(
    ("again", "elsewhere", "known"),
    [
        (LOSS_ROW, None, Certainty.CONFIRMED),
        (NORM_ROW, None, Certainty.SUSPECTED),
        (EQUAL_ROW, None, Certainty.SUSPECTED),
        (None, None, Certainty.SUSPECTED),
        (LOSS_ROW, [LOSS_ROW], Certainty.CONFIRMED),
        (LOSS_ROW, [EQUAL_ROW, LOSS_ROW], Certainty.CONFIRMED),
        (LOSS_ROW, [EQUAL_ROW, NORM_ROW], Certainty.NOISE),
        (LOSS_ROW, [], Certainty.NOISE),
        (LOSS_ROW, [REFUSED_ROW], Certainty.SUSPECTED),
        (LOSS_ROW, [REFUSED_ROW, EQUAL_ROW], Certainty.SUSPECTED),
        (LOSS_ROW, [REFUSED_ROW, LOSS_ROW], Certainty.CONFIRMED),
        (NORM_ROW, [LOSS_ROW], Certainty.NOISE),
        (EQUAL_ROW, [LOSS_ROW], Certainty.NOISE),
        (None, [LOSS_ROW], Certainty.SUSPECTED),
    ],
)
def test_rounding_needs_two_seeds_and_another_way(
    again: PointResult | None, elsewhere: list[PointResult] | None, known: Certainty
) -> None:
    assert certainty(LOSS_ROW, again, elsewhere) is known


ROWS = st.sampled_from([LOSS_ROW, NORM_ROW, EQUAL_ROW])


@given(ROWS, st.none() | ROWS, st.lists(ROWS))
def test_what_is_shown_elsewhere_stays_shown(
    first: PointResult, again: PointResult | None, elsewhere: list[PointResult]
) -> None:
    """No order and no further comparison makes noise of a deviation; one seed alone never is one."""
    known = certainty(first, again, elsewhere)
    assert known is certainty(first, again, elsewhere[::-1])
    assert known is not Certainty.CONFIRMED or certainty(first, again, [*elsewhere, EQUAL_ROW]) is known
    assert known is not Certainty.CONFIRMED or (again is not None and again.kind == first.kind)


@pytest.mark.parametrize(
    ("met", "exact", "known"),
    [
        (SINKS, {SINKS: NORM}, Certainty.CONFIRMED),
        (SINKS, {}, Certainty.NOISE),
        (SINKS, {SINKS: LOSS}, Certainty.NOISE),
        (SINKS.changed(bias=True), {}, Certainty.CONFIRMED),
    ],
)
def test_float64_or_second_layout_confirms(met: Point, exact: dict[Point, Deviation], known: Certainty) -> None:
    judge = Planted()
    cause = search(judge, exact=Planted(exact)).cause(met, judge(met, 1))
    assert (cause.point, cause.certainty) == (SINKS, known)


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
    run = CauseSearch(judge, few_factors(), 1, covers=2)
    assert not list(run)
    layouts = {seed: {point for point, asked in judge.asked if asked == seed} for seed in (1, 2)}
    assert sum(map(len, layouts.values())) == run.equal == len(judge.asked)
    assert len(layouts[1] & layouts[2]) < min(map(len, layouts.values())) / 2


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
    run = CauseSearch(judge, few_factors(), 1)
    assert list(run) == []
    assert run.equal == run.judged == len(judge.asked) == len(set(judge.asked))
    assert not run.uncovered


def test_search_ends_when_the_time_is_up() -> None:
    judge = Planted()
    run = CauseSearch(judge, Space("0.19.2"), 1, lambda: len(judge.asked) >= 5)
    list(run)
    assert 5 <= len(judge.asked) <= 7
