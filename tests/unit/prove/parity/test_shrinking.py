"""Tests of matrix.prove.parity.points."""

from __future__ import annotations

from functools import partial
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from matrix.kit.parity.factors import Point
from matrix.prove.parity.points import Cover, Space, contains, smallest, without
from tests.profiles import tries

CAUSES = (
    "softmax=learnable tp=2",
    "experts=4 balancing=aux_loss tp=2 sequence_parallel=on per_token_loss=on",
    "mtp=1 per_token_loss=on mask=uneven micro_batches=2",
    "layers=4 pp=2 vpp=2 micro_batches=2",
    "cp=2",
)
DENSE = list(islice(Cover(Space("0.19.2"), 1), 1, 25))


@tries(60)
@given(st.sampled_from(DENSE), st.sampled_from(CAUSES))
def test_smallest_point_is_the_planted_cause(point: Point, text: str) -> None:
    cause = Point.parse(text)
    if contains(point, cause):
        assert smallest(point, lambda smaller: contains(smaller, cause)) == cause


def test_every_cause_is_met_or_made() -> None:
    for text in CAUSES:
        cause = Point.parse(text)
        assert not cause.problems()
        assert smallest(cause, partial(contains, cause=cause)) == cause


def test_judged_points_are_possible_and_few() -> None:
    judged = []

    def shows(point: Point) -> bool:
        judged.append(point)
        return contains(point, Point.parse("softmax=learnable tp=2"))

    start = Point.parse(
        "layers=4 attention=gqa norm=rmsnorm activation=swiglu softmax=learnable mup=on mask=uneven tp=2 pp=2 "
        "uneven_stages=on recompute=full overlap_grad_reduce=on"
    )
    assert smallest(start, shows) == Point.parse("softmax=learnable tp=2")
    assert all(not point.problems() for point in judged)
    assert len(judged) < 20


def test_sizes_are_lowered() -> None:
    def shows(point: Point) -> bool:
        return point.count("tp") >= 2

    assert smallest(Point.parse("tp=4 bias=on"), shows) == Point.parse("tp=2")


def test_what_needs_dropped_choice_dropped_as_well() -> None:
    point = Point.parse("experts=4 shared_expert=on dispatcher=alltoall shared_overlap=on dp=2 ep=2")
    assert without(point, ["experts"]) == Point.parse("dp=2")
    assert without(Point.parse("tp=2 sequence_parallel=on"), ["tp"]) == Point()


def test_word_of_a_cause_is_kept() -> None:
    """Where each loss of balance shows the same, a cause with another one would not be avoided at the next point."""
    start = Point.parse("experts=4 balancing=seq_aux_loss cp=2")
    assert smallest(start, lambda point: point["balancing"] != "none" and point["cp"] != 1) == start
