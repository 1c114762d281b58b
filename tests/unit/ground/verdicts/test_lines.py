"""Lines near the words that a fault needs: none is lost, their numbers are right, the rest is skipped."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.verdicts.lines import AFTER, BEFORE, LINE, Excerpts, Triggers, quoted_lines
from tests.profiles import tries

WORDS = ["Traceback", "rror", "exit", "x y", "started by", "_a_1", "_a_2", "_b_1", "Z"]


@given(st.lists(st.sampled_from([*WORDS, "other", "_", "x", "\n", "Zx"]), max_size=12), st.sets(st.sampled_from(WORDS)))
def test_a_place_is_found_where_a_word_is(parts: list[str], words: set[str]) -> None:
    text = "".join(parts)
    places = Triggers(words).places(text, 0)
    assert bool(places) == any(word in text for word in words)
    near = {place for found in places for place in range(found - 8, found + AFTER)}
    assert all(match.start() in near for word in words for match in re.finditer(re.escape(word), text))


WORD = st.text("eo xyk_W*(=", min_size=1, max_size=12)


@given(st.data(), st.lists(WORD, max_size=6), st.lists(st.lists(WORD, min_size=1, max_size=3), max_size=3))
def test_lines_with_a_word_are_never_dropped(data: st.DataObject, words: list[str], choices: list[list[str]]) -> None:
    required = words + [" ".join(texts) for texts in choices]
    line = st.lists(st.one_of(st.sampled_from([*required, "lm loss"]), WORD), max_size=3).map("".join)
    log = data.draw(st.lists(line, max_size=8).map(lambda lines: "\n".join(["start", *lines, "end"])))
    size = data.draw(st.integers(1, 40))
    triggers = Triggers(words, choices)
    plain = [text for text in log.split("\n") if any(word in text for word in required)]
    read = {text for _, text in Excerpts((log[at : at + size] for at in range(0, len(log), size)), triggers)}
    assert read.issuperset(plain)
    for offset in range(0, len(log), 7):
        whole = any(word in log[offset:] for word in words)
        whole |= any(all(text in log[offset:] for text in texts) for texts in choices)
        assert triggers.places(log, offset) or not whole


@pytest.mark.parametrize(
    ("words", "choice", "log", "expected"),
    [
        (["rror"], ["Muon cannot", "fatal error: "], "Muon cannot", 0),  # every match has the word
        (["xit"], ["in the loss", "Muon is there"], "in the loss", 0),  # M is rare
        (["xit"], ["in the loss", "Muon is there"], "Muon is there", 1),
        (["xit"], ["the loss", "in the loss of"], "in the loss of", 1),  # none is rare: the longer one
    ],
)
def test_one_text_of_a_choice_is_enough(words: list[str], choice: list[str], log: str, expected: int) -> None:
    assert len(Triggers(words, [choice]).places(log, 0)) == expected


def test_many_words_are_found_by_few_searches() -> None:
    words = [f"kernel stream_{number} failed in {number % 7}" for number in range(500)]
    triggers = Triggers(words)
    assert len(triggers._searches) == 1
    assert all(triggers.places(f"{'lm loss ' * 9}{word}", 0) for word in words)
    assert triggers.places("kernel stream_500 failed in 3", 0) == []


def test_an_empty_word_is_everywhere() -> None:
    log = "a\nb\n" * AFTER
    assert len(list(Excerpts([log], Triggers(["Traceback", ""])))) == 2 * AFTER


@tries(20)
@given(
    st.lists(st.sampled_from([1, 50, AFTER, BEFORE, 3 * AFTER]), min_size=1, max_size=3),
    st.integers(AFTER // 9, 3 * AFTER),
)
def test_lines_around_a_trigger_are_read(gaps: list[int], size: int) -> None:
    """In their order, with their numbers, whatever the size of the parts that the log arrives in."""
    lines: list[str] = []
    for gap in gaps:
        lines += [f"step {number:90d}" for number in range(gap // 95)]
        lines.append("RuntimeError: this")
    text = "\n".join([*lines, "the end"])
    excerpts = Excerpts((text[start : start + size] for start in range(0, len(text), size)), Triggers(["rror"]))
    read = list(excerpts)
    numbers = [number for number, _ in read]
    assert all(lines[number - 1] == line for number, line in read if number <= len(lines))
    assert numbers == sorted(set(numbers))
    for place, line in enumerate(lines, start=1):
        if line.startswith("Runtime"):
            around = range(max(place - BEFORE // 99, 1), min(place + AFTER // 2 // 99, len(lines)))
            assert set(around) <= set(numbers)
    assert (excerpts.lines, excerpts.is_cut) == (len(lines) + 1, True)


def test_lines_far_from_a_trigger_are_left_out() -> None:
    empty = "\n" * 2_000_000
    excerpts = Excerpts([empty, "RuntimeError\n", empty], Triggers(["rror"]))
    numbers = [number for number, line in excerpts if line]
    read = list(Excerpts([empty, "RuntimeError\n", empty], Triggers(["rror"])))
    assert numbers == [2_000_001]
    assert len(read) < BEFORE + AFTER + 9
    assert (excerpts.lines, excerpts.is_cut) == (4_000_001, False)


@pytest.mark.parametrize(
    ("text", "count", "is_cut"),
    [("", 0, False), ("a", 1, True), ("a\n", 1, False), ("a\n\nb", 3, True), ("a\r", 1, False)],
)
def test_lines_are_counted_as_editors_count(text: str, count: int, is_cut: bool) -> None:
    excerpts = Excerpts([text], Triggers(["never"]))
    assert list(excerpts) == []
    assert (excerpts.lines, excerpts.is_cut) == (count, is_cut)


def test_a_line_without_end_takes_bounded_room() -> None:
    excerpts = Excerpts(("x" * 2**20 for _ in range(50)), Triggers([""]))
    assert [len(line) for _, line in excerpts] == [LINE]


def test_colours_within_a_word_do_not_hide_it() -> None:
    log = "\x1b[1;31mType\x1b[0m\x1b]8;;x\x07Error\x1b[K: this\n\x1b]never closed\nlast\n"
    assert [line for _, line in Excerpts([log], Triggers(["rror"]))] == ["TypeError: this", "\x1b]never closed", "last"]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), min_size=1, max_size=4))
def test_texts_of_a_json_line_are_read(lines: list[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    read = quoted_lines(json.dumps({"level": "error", "message": text, "rank": 0}))
    assert "\n".join(read).replace("\r", "\n") == text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("plain \\n text", ["plain \\n text"]),
        ('{"level": "info", "rank": 3}', ['{"level": "info", "rank": 3}']),
        ('{"error": "TypeError: this"}', ["TypeError: this"]),
        (
            'msg="Traceback (most recent call last):\\n  File \\"a.py\\"" x="y"',
            ["Traceback (most recent call last):", '  File "a.py"'],
        ),
        ('{"a": "Traceback (most recent call last):\\nValueErr', ["Traceback (most recent call last):", "ValueErr"]),
    ],
)
def test_other_lines_are_unchanged(line: str, expected: list[str]) -> None:
    """A text whose end is cut is read up to there."""
    assert quoted_lines(line) == expected
