"""By which arguments a failure is reached."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.catalog.reach import (
    Condition,
    JobArguments,
    Reach,
    Reached,
    ReachedBy,
    dashed,
    reached,
    recognised,
    settings_table,
    translated,
)
from tests.unit.catalogs import real

OVERLAP = ReachedBy(arguments=("--overlap",))
MASK = ReachedBy(arguments=("--seq-length >= 32768", "not --no-mask"))
SAVE = ReachedBy(arguments=("--save", "--format == torch_dist"), defaults={"--format": "torch_dist"}, usual=True)
DATA = ReachedBy(arguments=("not --eod",), when="a sample has padding")


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("torchrun --nproc_per_node 8 a.py --x", {"nproc-per-node": "8", "x": True}),
        ("a.py --x=1 --no-y --z a b", {"x": "1", "y": False, "z": "a"}),
        (
            "a.py model.mcore.ub_tp_comm_overlap=True ++seq_length=8 ++m.seq_length=9",
            {"tp-comm-overlap": True, "seq-length": "9"},
        ),
        ("a.py --x false --y=false", {"x": False, "y": False}),
    ],
)
def test_words_are_arguments(words: str, given: dict[str, object]) -> None:
    assert JobArguments.parse(words.split()) == JobArguments(given)  # type: ignore[arg-type]  # a table of mixed values


@pytest.mark.parametrize("words", ["a.py $MORE", "a.py --x 1 ${MORE[@]}", "a.py $(cat flags)"])
def test_open_words_make_a_command_incomplete(words: str) -> None:
    assert not JobArguments.parse(words.split()).complete


@pytest.mark.parametrize(
    ("way", "words", "reach", "by"),
    [
        (OVERLAP, "a.py --overlap", Reach.REACHED, ("--overlap",)),
        (OVERLAP, "a.py", Reach.MISSING, ("--overlap",)),
        (OVERLAP, "a.py --no-overlap", Reach.AVOIDED, ("--no-overlap",)),
        (OVERLAP, "a.py $MORE", Reach.OPEN, ("--overlap",)),
        (MASK, "a.py --seq-length 65536", Reach.REACHED, ("--seq-length >= 32768",)),
        (MASK, "a.py --seq-length 4096", Reach.AVOIDED, ("--seq-length 4096",)),
        (MASK, "a.py --seq-length 65536 --no-mask", Reach.AVOIDED, ("--no-mask",)),
        (MASK, "a.py --seq-length $S", Reach.OPEN, ("--seq-length >= 32768",)),
        (MASK, "a.py --seq-length many", Reach.AVOIDED, ("--seq-length many",)),
        (SAVE, "a.py --save /c", Reach.REACHED, ("--save",)),
        (SAVE, "a.py --save $C", Reach.REACHED, ("--save",)),
        (SAVE, "a.py --save /c --format zarr", Reach.AVOIDED, ("--format zarr",)),
        (DATA, "a.py", Reach.OPEN, ()),
        (DATA, "a.py --eod", Reach.AVOIDED, ("--eod",)),
    ],
)
def test_command_reaches_a_failure(way: ReachedBy, words: str, reach: Reach, by: tuple[str, ...]) -> None:
    found = way.reached(JobArguments.parse(words.split()))
    assert (found.reach, found.by) == (reach, by)


@pytest.mark.parametrize(
    ("way", "certain", "text"),
    [
        (OVERLAP, False, "--overlap"),
        (SAVE, True, "--save"),
        (DATA, False, "when a sample has padding"),
        (ReachedBy(arguments=("not --off",)), True, ""),
    ],
)
def test_without_a_command_the_conditions_are_named(way: ReachedBy, certain: bool, text: str) -> None:
    """`usual` alone, or defaults alone, count as reached."""
    found = way.reached(None)
    assert (found.certain, str(found)) == (certain, text)


def test_most_certain_way_counts() -> None:
    words = JobArguments.parse(["a.py", "--save", "/c"])
    assert reached((OVERLAP, SAVE), lambda _: (), words).reach is Reach.REACHED
    assert reached((OVERLAP, SAVE), lambda way: () if way is OVERLAP else None, words).reach is Reach.MISSING
    assert reached((), lambda _: (), words).reach is Reach.REACHED


def test_flag_that_avoids_it_is_named() -> None:
    assert MASK.reached(None).switches == ("--no-mask",)


@pytest.mark.parametrize("text", ["", "save", "-x", "--X", "not --x == 1", "--x >= many", "--x ==", "--no-x == 1"])
def test_other_texts_are_no_condition(text: str) -> None:
    assert Condition.parse(text) is None


@given(st.lists(st.text(max_size=20)))
def test_any_words_are_read(words: list[str]) -> None:
    JobArguments.parse(words)


def test_value_may_have_several_lines() -> None:
    assert JobArguments.parse(["--x=a\nb", "m.y=c\nd", "--z"]).given == {"x": "a\nb", "y": "c\nd", "z": True}


def test_command_with_an_open_word_is_incomplete() -> None:
    assert JobArguments.parse(["a.py", "$MORE"]) == JobArguments({}, complete=False)
    assert JobArguments.parse(["a.py", "--x", "$X", "$MORE"]) == JobArguments({"x": "$X"}, complete=False)


def test_option_of_an_undecided_branch_is_open() -> None:
    """It may be given or not: nothing is certain by it, and its value is none that is known."""
    words = ["--overlap", "--no-mask", "--size=4"]
    known, open_ = JobArguments.parse(words), JobArguments.parse(words, {"--overlap", "--size=4"})
    assert (known.values, open_.values) == ({"size": "4"}, {})
    assert (OVERLAP.reached(known).reach, OVERLAP.reached(open_).reach) == (Reach.REACHED, Reach.OPEN)
    assert open_.perhaps == {"overlap", "size"}
    assert MASK.reached(open_).reach is Reach.AVOIDED


def test_values_are_the_known_texts() -> None:
    arguments = JobArguments({"x": "1", "y": "$S", "z": True, "w": "`date`", "v": ""})
    assert arguments.values == {"x": "1", "v": ""}


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("--x", Condition("--x", "x", False, False, "", "")),
        ("--no-x", Condition("--no-x", "x", True, False, "", "")),
        ("not --x", Condition("not --x", "x", False, True, "", "")),
        ("not --no-x", Condition("not --no-x", "x", True, True, "", "")),
        ("--seq-length >= 4096", Condition("--seq-length >= 4096", "seq-length", False, False, ">=", "4096")),
        ("--x == a|b", Condition("--x == a|b", "x", False, False, "==", "a|b")),
    ],
)
def test_condition_has_these_parts(text: str, condition: Condition) -> None:
    assert Condition.parse(text) == condition


@pytest.mark.parametrize(
    ("text", "value", "holds"),
    [
        ("--x", True, True),
        ("--x", False, False),
        ("--x", "1", True),
        ("--x", None, False),
        ("not --x", None, True),
        ("not --x", False, True),
        ("not --x", "1", False),
        ("--no-x", False, True),
        ("--no-x", None, False),
        ("--no-x", True, False),
        ("not --no-x", False, False),
        ("not --no-x", None, True),
        ("--x == a|b", "b", True),
        ("--x == a|b", "a|b", False),
        ("--x == a", True, False),
        ("--x == a", None, False),
        ("--x != a|b", "b", False),
        ("--x != a", "b", True),
        ("--x != a", True, True),
        ("--x != a", None, True),
        ("--x >= 4", "4", True),
        ("--x >= 4", "3", False),
        ("--x > 4", "10", True),
        ("--x < 4", "many", False),
        ("--x < 4", True, False),
        ("--x < 4", None, False),
        ("--x == a", "$X", None),
        ("--x", "$X", True),
    ],
)
def test_condition_holds_for_a_value(text: str, value: str | bool | None, holds: bool | None) -> None:
    condition = Condition.parse(text)
    assert condition
    given = {} if value is None else {"x": value}
    assert condition.holds(JobArguments(given), {}) is holds
    if value is None:
        assert condition.holds(JobArguments(given, complete=False), {}) is None


def test_default_counts_where_nothing_is_given() -> None:
    condition = Condition.parse("--x == a")
    assert condition
    assert condition.holds(JobArguments(), {"--x": "a"}) is True
    assert condition.holds(JobArguments({"x": "b"}), {"--x": "a"}) is False


WAY = ReachedBy(arguments=("--x", "--y >= 4", "not --no-z"), defaults={"--y": "8"}, when="a sample is long", usual=True)
PLAIN = ReachedBy(arguments=("--x", "not --z"))


@pytest.mark.parametrize(
    ("way", "words", "expected", "text"),
    [
        (
            WAY,
            None,
            Reached(Reach.OPEN, ("--x",), "a sample is long", True, ("--no-z",)),
            "with --x, when a sample is long",
        ),
        (PLAIN, None, Reached(Reach.OPEN, ("--x",), "", False, ("--z",)), "with --x"),
        (
            ReachedBy(arguments=("not --z",)),
            None,
            Reached(Reach.REACHED, (), "", False, ("--z",)),
            "",
        ),
        (WAY, "--x", Reached(Reach.OPEN, (), "a sample is long", switches=("--no-z",)), "only when a sample is long"),
        (
            WAY,
            "$MORE --x",
            Reached(Reach.OPEN, ("--y >= 4", "not --no-z"), "a sample is long", switches=("--no-z",)),
            "with --y >= 4 and not --no-z, when a sample is long",
        ),
        (
            WAY,
            "--y 9",
            Reached(Reach.MISSING, ("--x",), "a sample is long", switches=("--no-z",)),
            "only with --x, when a sample is long",
        ),
        (WAY, "--x --y 2 --no-z", Reached(Reach.AVOIDED, ("--y 2", "--no-z")), "the command has --y 2 and --no-z"),
        (WAY, "--no-x --y 9", Reached(Reach.AVOIDED, ("--no-x",)), "the command has --no-x"),
        (PLAIN, "--x --z", Reached(Reach.AVOIDED, ("--z",)), "the command has --z"),
        (PLAIN, "--x", Reached(Reach.REACHED, ("--x",), switches=("--z",)), "reached by --x"),
        (PLAIN, "$MORE", Reached(Reach.OPEN, ("--x", "not --z"), switches=("--z",)), "with --x and not --z"),
    ],
)
def test_way_is_reached_with_its_evidence(way: ReachedBy, words: str | None, expected: Reached, text: str) -> None:
    arguments = None if words is None else JobArguments.parse(words.split())
    assert way.reached(arguments) == expected
    assert expected.needs == text


@pytest.mark.parametrize(
    ("reach", "usual", "certain"),
    [
        (Reach.REACHED, False, True),
        (Reach.OPEN, True, True),
        (Reach.OPEN, False, False),
        (Reach.MISSING, True, False),
        (Reach.AVOIDED, True, False),
    ],
)
def test_usual_way_is_certain_while_open(reach: Reach, usual: bool, certain: bool) -> None:
    assert Reached(reach, usual=usual).certain is certain
    assert reached((), lambda _: (), None) == Reached(Reach.REACHED)


def test_certain_way_goes_before_a_nearer_one() -> None:
    """An open way that most jobs take goes before one that lacks an option, and both before one that is avoided."""
    words = JobArguments.parse(["a.py", "--no-x", "$MORE"])
    avoided, usual = ReachedBy(arguments=("--x",)), ReachedBy(arguments=("--y",), usual=True)
    assert reached((avoided, usual), lambda _: (), None) == usual.reached(None)
    assert reached((avoided, usual), lambda _: (), words) == usual.reached(words)


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ({"fp8": "hybrid"}, {"fp8-format": "hybrid"}),
        ({"fp8": True, "fp8-hybrid": True, "fp8-e4m3": False}, {"fp8-format": "hybrid"}),
        ({"fp8": True, "fp8-e4m3": True}, {"fp8-format": "e4m3"}),
        ({"fp8": False, "fp8-hybrid": True}, {"fp8-format": False}),
        ({"fp8-hybrid": True}, {}),
        ({"encoder-seq-length": "4096"}, {"seq-length": "4096"}),
        ({"skip-getting-attention-mask-from-dataset": True}, {"create-attention-mask-in-dataloader": False}),
        ({"activations-checkpoint-granularity": "full"}, {"recompute-granularity": "full"}),
        ({"context-parallel-size": "2"}, {"context-parallel-size": "2"}),
    ],
)
def test_settings_become_arguments(given: dict[str, str | bool], arguments: dict[str, str | bool]) -> None:
    assert translated(given) == arguments


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("--tp_comm_overlap false", {"tp-comm-overlap": False}),
        ("--sequence_parallel true --lr 1", {"sequence-parallel": True, "lr": "1"}),
        ("+model.fp8=True model.fp8_hybrid=True", {"fp8-format": "hybrid"}),
        (
            "a.rollout.tensor_model_parallel_size=1 a.actor.tensor_model_parallel_size=4",
            {"tensor-model-parallel-size": "4"},
        ),
    ],
)
def test_command_lines_are_translated(words: str, given: dict[str, str | bool]) -> None:
    assert JobArguments.parse(words.split()).given == given


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["tensor_model_parallel_size", "micro-batch-size", "fp8"], True),
        (["tensor_model_parallel_size", "micro_batch_size", "image"], False),
        (["fp8", "fp8_hybrid", "fp8"], False),
        ([], False),
    ],
)
def test_three_names_make_settings(names: list[str], expected: bool) -> None:
    assert recognised(names) is expected


def test_rows_of_the_table_are_whole() -> None:
    rows = settings_table().setting
    plain = Counter(dashed(name) for row in rows if not row.needs for name in row.names)
    assert max(plain.values()) == 1, "a name with two meanings"
    for row in rows:
        assert row.source
        assert row.names
        assert row.option == dashed(row.option), "an argument's name"
        assert bool(row.needs) is bool(row.value)
        assert not row.needs or dashed(row.needs) in plain


def test_no_row_hides_an_option_of_failures() -> None:
    """A name that is an argument of Megatron itself may not be translated into another."""
    names = {dashed(name) for row in settings_table().setting for name in row.names}
    conditions = {one.option for failure in real().failures for way in failure.reached_by for one in way.on_arguments}
    assert not names & conditions


@pytest.mark.parametrize(
    ("words", "holds"),
    [
        ("--kv-channels 256", True),
        ("--kv-channels 128 --hidden-size 8192 --num-attention-heads 32", False),
        ("--hidden-size 8192 --num-attention-heads 32", True),
        ("--hidden-size 4096 --num-attention-heads 32", False),
        ("--hidden-size 8192", None),
        ("--hidden-size $HIDDEN --num-attention-heads 32", None),
        ("--hidden-size 8192 --num-attention-heads 0", None),
        ("--kv-channels $WIDTH --hidden-size 4096 --num-attention-heads 32", None),
        ("", None),
    ],
)
def test_head_dimension_is_computed(words: str, holds: bool | None) -> None:
    """As Megatron-LM does, from the hidden size and the heads; it is unknown where one of them is."""
    condition = Condition.parse("--kv-channels > 192")
    assert condition
    assert condition.holds(JobArguments.parse(words.split()), {}) is holds


def test_undecided_head_dimension_leaves_open() -> None:
    way = ReachedBy(arguments=("--kv-channels > 192",))
    assert way.reached(JobArguments.parse(["--hidden-size", "8192"])).reach is Reach.OPEN
    assert way.reached(None) == Reached(Reach.OPEN, ("--kv-channels > 192",))
