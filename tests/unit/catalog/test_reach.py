"""By which arguments a failure is reached."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.catalog.reach import Condition, JobArguments, Reach, ReachedBy, reached

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
        ("a.py --x false --y=false", {"x": "false", "y": False}),
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
    assert reached((OVERLAP, SAVE), lambda _: True, words).reach is Reach.REACHED
    assert reached((OVERLAP, SAVE), lambda way: way is OVERLAP, words).reach is Reach.MISSING
    assert reached((), lambda _: True, words).reach is Reach.REACHED


def test_flag_that_avoids_it_is_named() -> None:
    assert MASK.reached(None).switches == ("--no-mask",)


@pytest.mark.parametrize("text", ["", "save", "-x", "--X", "not --x == 1", "--x >= many", "--x ==", "--no-x == 1"])
def test_other_texts_are_no_condition(text: str) -> None:
    assert Condition.parse(text) is None


@given(st.lists(st.text(max_size=20)))
def test_any_words_are_read(words: list[str]) -> None:
    JobArguments.parse(words)
