"""Log text is not trusted: it is made harmless, bounded and free of secrets."""

from __future__ import annotations

import importlib
import re
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from matrix.ground.catalog.schema import ambiguity, read_toml
from matrix.ground.verdicts.text import (
    FORMATS,
    LINE,
    MASKED,
    NAME_IN,
    NAMED_VALUE,
    formats,
    head,
    mask,
    one_line,
    tail,
    visible,
)
from tests.profiles import tries
from tests.unit.ground.verdicts.secret_texts import FORMATTED, LEFT, NAMED
from tests.unit.ground.verdicts.secret_texts import LINE as LINE_OF_KEY

# Their value is all of the rest of the text.
KEEP_NOTHING_AFTER = {"user and password of curl"}


@given(st.text(st.characters()))
def test_visible_keeps_only_newline_and_tab(text: str) -> None:
    assert all(char in "\n\t" or char.isprintable() for char in visible(text))


@given(st.text(st.characters()))
def test_visible_text_can_be_written_as_utf8(text: str) -> None:
    visible(text).encode("utf-8")


def test_printable_text_stays_as_it_is() -> None:
    text = "Loss: 1.5 ± 0.1\n\tnächste Zeile ✓ 日本"
    assert text == visible(text)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("10%\r100%\r\nend", "10%\n100%\nend"),
        ("a\u202eb", "a\\u202eb"),
        (b"caf\xe9".decode("utf-8", "surrogateescape"), "caf\\xe9"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_terminal_control_sequences_are_written_out(raw: str, shown: str) -> None:
    assert shown == visible(raw)


@pytest.mark.parametrize(("name", "text", "secret"), FORMATTED)
def test_formats_of_secrets_are_masked(name: str, text: str, secret: str) -> None:
    masked = mask(f"before {text} after" if "\n" not in text else text)
    assert secret not in masked
    assert MASKED in masked
    assert "after" in masked or "\n" in text or name in KEEP_NOTHING_AFTER


def test_every_format_has_an_example() -> None:
    rows = read_toml(FORMATS)["format"]
    assert [row["name"] for row in rows] == list(dict.fromkeys(name for name, _, _ in FORMATTED))
    assert all(row["source"] and row["words"] for row in rows)


def test_no_format_takes_exponential_time() -> None:
    assert [ambiguity(pattern) for _, pattern in formats() if ambiguity(pattern)] == []


def bounds(items: Iterable[tuple[Any, Any]]) -> Iterator[int]:
    """Yield the largest count of each repeat in a parsed pattern."""
    for _, value in items:
        for part in value if isinstance(value, tuple | list) else ():
            if hasattr(part, "data"):
                yield from bounds(part)
            for inner in part if isinstance(part, list) else ():
                yield from bounds(inner) if hasattr(inner, "data") else ()
        if isinstance(value, tuple) and len(value) == 3 and isinstance(value[1], int) and hasattr(value[2], "data"):
            yield int(value[1])


def test_every_repeat_of_a_format_is_bounded() -> None:
    """Each start of a match then looks at a bounded part of the text: the time is linear in its length."""
    parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
    assert list(bounds(parser.parse("a{2,3}(?:b|(c*))"))) == [3, int(parser.MAXREPEAT)]
    for _, pattern in formats():
        assert max(bounds(parser.parse(pattern)), default=0) <= 2**14


def test_a_format_has_at_most_one_group() -> None:
    assert {re.compile(pattern).groups for _, pattern in formats()} == {0, 1}


@pytest.mark.parametrize("line", NAMED)
def test_the_value_of_a_secret_is_masked(line: str) -> None:
    masked = mask(line)
    assert "hunter2" not in masked
    assert MASKED in masked


@pytest.mark.parametrize("line", LEFT)
def test_ordinary_log_lines_are_not_masked(line: str) -> None:
    assert line == mask(line)


def test_lines_after_a_private_key_stay() -> None:
    key = f"-----BEGIN PRIVATE KEY-----\n{LINE_OF_KEY}\n"
    assert mask(f"{key}the next line").endswith("\nthe next line")
    assert mask(f"{key}-----END PRIVATE KEY-----\nthe next line") == f"{MASKED}\nthe next line"


FRAGMENTS = st.sampled_from(
    [
        *NAMED,
        *(text for _, text, _ in FORMATTED),
        *"abk=:'\"@/ \n-.,;\\",
        "token",
        "Secret",
        "_KEY",
        "--",
        "://",
        "Basic ",
    ]
)


@tries(200)
@given(st.lists(FRAGMENTS, max_size=6).map(" ".join))
@example(f"wandb login --host=https://host {'0123456789' * 4} dop_v1_{'0123456789abcdef' * 4}")
def test_a_masked_text_stays_as_it_is(text: str) -> None:
    """Records are masked where they enter, and again where they are displayed."""
    masked = mask(text)
    assert mask(masked) == masked


@tries(200)
@given(st.lists(FRAGMENTS, max_size=6).map("".join))
def test_no_name_is_missed_by_the_quick_search(text: str) -> None:
    for line in text.split("\n"):
        assert not NAMED_VALUE.search(line) or NAME_IN.search(line)


def test_a_secret_with_a_colour_code_is_masked() -> None:
    assert "hunter2" not in tail("HF_TOKEN=hun\x1b[1mter2-secret")


def test_one_line_is_one_line_of_the_width() -> None:
    assert one_line("one\n\n  two three four", 10) == "one two..."


def test_tail_keeps_last_lines_and_counts_rest() -> None:
    text = "\n".join(f"line {n}" for n in range(1000))
    assert tail(text, 2).split("\n") == ["[... 998 lines left out]", "line 998", "line 999"]


def test_head_keeps_first_lines_and_counts_rest() -> None:
    text = "\n".join(f"line {n}" for n in range(1000))
    assert head(text, 2).split("\n") == ["line 0", "line 1", "[... 998 lines left out]"]


@pytest.mark.parametrize("unit", ["a", "a_", "token ", "password", "eyJ-", "://", "\x1b[", '"', "-", "secret=\t"])
def test_long_line_is_cut_in_linear_time(unit: str) -> None:
    """The time limit catches hangs: a pattern that backtracks would take minutes."""
    text = unit * (4_000_000 // len(unit))
    begun = time.monotonic()
    for shown in (tail(text), head(text), one_line(text)):
        assert len(shown) < 61 * (LINE + 40)
    assert time.monotonic() - begun < 20
