"""Tests of matrix.kit.parity.factors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.errors import MatrixError
from matrix.kit.parity.factors import CONSTRAINTS, GLOBAL_BATCH, Point, Side, Value, factors, shown

POINTS = st.fixed_dictionaries({name: st.sampled_from(factor.values) for name, factor in factors().items()}).map(
    Point.of
)


class Reading(Point):
    """A point that records which factors are read."""

    names: set[str]

    def __getitem__(self, name: str) -> Value:
        self.__dict__.setdefault("names", set()).add(name)
        return super().__getitem__(name)


@given(POINTS)
def test_point_text_round_trips(point: Point) -> None:
    assert Point.parse(str(point)) == point
    assert Point.of(dict(point)) == point


@given(POINTS)
def test_constraints_read_what_they_name(point: Point) -> None:
    for rule in CONSTRAINTS:
        reading = Reading(point.chosen)
        rule.holds(reading)
        assert reading.__dict__.get("names", set()) <= set(rule.reads), rule.name


@given(POINTS)
def test_reference_has_one_rank_and_its_model(point: Point) -> None:
    reference = point.reference()
    assert reference.ranks == 1
    assert all(reference[name] == point[name] for name, factor in factors().items() if factor.kind is Side.MODEL)
    layouts = {name for name, _ in reference.chosen if factors()[name].kind is Side.LAYOUT}
    assert layouts <= {"micro_batches"}


def test_plain_point_is_possible() -> None:
    assert Point().problems() == []
    assert Point().reference() == Point()


def test_each_factor_alone_states_its_need() -> None:
    for name, factor in factors().items():
        for value in factor.values[1:]:
            problems = Point.of({name: value}).problems()
            assert not problems or all(name in problem.factors or problem.reason for problem in problems)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("experts=4 balancing=aux_loss dp=2 micro_batches=2", 2),
        ("experts=4 balancing=seq_aux_loss dp=2", GLOBAL_BATCH),
        ("mask=uneven dp=4", 2),
        ("mask=uneven per_token_loss=on dp=4", GLOBAL_BATCH),
        ("dp=4", GLOBAL_BATCH),
    ],
)
def test_reference_keeps_micro_batches_where_losses_depend(text: str, size: int) -> None:
    assert Point.parse(text).reference().micro_batch == size


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tp=4 pp=2 layers=4", "ranks"),
        ("pp=4", "stages"),
        ("sequence_parallel=on", "sequence parallel"),
        ("experts=4 tp=2", "experts under tensor parallel"),
        ("ep=2 experts=4", "expert ranks"),
        ("ep=2", "ep: needs experts = 4"),
        ("vpp=2 pp=2 layers=4", "virtual stages"),
        ("attention=gqa tp=4", "query groups"),
        ("distributed_optimizer=on", "distributed optimizer"),
        ("softmax=learnable cp=2", "sinks under context parallel"),
    ],
)
def test_impossible_point_states_its_reason(text: str, reason: str) -> None:
    assert any(reason in str(problem) for problem in Point.parse(text).problems())


def test_arguments_are_those_of_the_command_line() -> None:
    point = Point.parse("experts=4 balancing=aux_loss tp=2 sequence_parallel=on per_token_loss=on")
    arguments = " ".join(point.arguments())
    for part in (
        "--num-experts 4",
        "--moe-aux-loss-coeff 0.1",
        "--tensor-model-parallel-size 2",
        "--sequence-parallel",
    ):
        assert part in arguments
    assert "--calculate-per-token-loss" in arguments
    assert "--moe" not in " ".join(Point().arguments())


def test_release_without_a_value_does_not_support_it() -> None:
    assert not Point.parse("softmax=learnable").supported("0.14.0")
    assert Point.parse("softmax=learnable").supported("0.15.0")
    assert not Point.parse("experts=4 balancing=global_aux_loss").supported("0.14.0")
    assert Point().supported("0.5.0")


@pytest.mark.parametrize("text", ["tp=3", "tp", "nothing=1", "tp=on", "bias=1"])
def test_unknown_choice_is_an_error(text: str) -> None:
    with pytest.raises(MatrixError):
        Point.parse(text)


def test_needs_and_texts_are_of_the_table() -> None:
    for factor in factors().values():
        assert {*factor.options, *factor.since} <= {*map(shown, factor.values)}, factor.name
        for name, values in factor.needs.items():
            assert set(values) <= set(factors()[name].values), factor.name
