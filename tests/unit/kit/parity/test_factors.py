"""Tests of matrix.kit.parity.factors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.errors import MatrixError
from matrix.kit.parity.factors import CONSTRAINTS, GLOBAL_BATCH, Leg, Point, Side, Value, factors, shown

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
    ("text", "writer"),
    [
        ("tp=2 resume=same", "tp=2 resume=same"),
        ("resume=same parallel_load=on", "resume=same parallel_load=on"),
        ("tp=2 resume=dp", "tp=2 dp=2 resume=dp"),
        ("dp=4 resume=dp", "resume=dp"),
        ("pp=2 distributed_optimizer=on resume=one", "distributed_optimizer=on resume=one"),
        ("dp=2 resume=tp", "tp=2 sequence_parallel=on resume=tp"),
        ("experts=4 tp=2 sequence_parallel=on resume=ep", "experts=4 dp=4 ep=4 resume=ep"),
        ("experts=4 balancing=aux_loss dp=4 resume=pp", "experts=4 balancing=aux_loss pp=2 micro_batches=4 resume=pp"),
    ],
)
def test_writer_is_the_layout_of_resume(text: str, writer: str) -> None:
    point = Point.parse(f"optimizer=adam {text}")
    assert point.problems() == []
    first, second = point.legs
    assert (first.point, first.steps) == (Point.parse(f"optimizer=adam {writer}"), range(1))
    assert (second.point, second.steps) == (point, range(1, 2))
    assert point.writer.reference() == point.reference()


def test_plain_point_trains_in_one_leg() -> None:
    assert Point.parse("tp=2").legs == (Leg(Point.parse("tp=2"), range(2)),)


@pytest.mark.parametrize(
    ("text", "reshards"),
    [
        ("resume=same", False),
        ("dp=2 resume=one", False),
        ("tp=2 resume=one", True),
        ("pp=2 resume=tp", True),
        ("resume=same distributed_optimizer=on reshardable=on", True),
    ],
)
def test_default_format_is_of_equal_tp_and_pp(text: str, reshards: bool) -> None:
    assert {leg.reshards for leg in Point.parse(f"optimizer=adam {text}").legs} == {reshards}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("resume=same", "resume: needs optimizer = adam"),
        ("optimizer=adam parallel_load=on", "parallel_load: needs resume"),
        ("optimizer=adam resume=ep", "resume: the layout that writes"),
        ("optimizer=adam experts=4 balancing=aux_loss resume=ep", "resume: the layout that writes"),
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
