"""Output on a terminal and in a pipe: wrapped between words, never cut, neither markup nor escape codes of others."""

from __future__ import annotations

import io
import sys

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from matrix.show.terminal import (
    RED,
    UNLIMITED,
    Alternative,
    Part,
    Prose,
    Rows,
    console,
    paragraphs,
    rendered,
    table,
    text,
    warn,
)
from tests.unit.terminals import Terminal, coloured, piped, shown

CELL = "ngc-24.03/mcore-0.9.0rc0+094d66b/te-1.9.0.dev0+f9dd37f/driver-470.161.03"
LINE = f'megatrix run --case "{CELL} dud-assertion tp2 gpu"'
WIDTHS = (0, 1, 5, 16, 40, 80, 120)


@pytest.mark.parametrize("width", WIDTHS)
def test_command_is_never_wrapped(width: int) -> None:
    assert shown(f"  {LINE}", width=width) == f"  {LINE}\n"


@pytest.mark.parametrize("width", WIDTHS)
def test_word_is_never_cut(width: int) -> None:
    prose, rows = Prose(f"note of {CELL}, which is long", 4), table([("cell:", f"in {CELL} now"), (CELL, "x y")])
    assert CELL in shown(prose, width=width)
    assert shown(rows, width=width).count(CELL) == 2


@pytest.mark.parametrize("width", [40, 80, 120])
def test_prose_wraps_at_the_width(width: int) -> None:
    lines = shown(Prose("word " * 60, 4), table([("label:", "word " * 60)], indent=2), width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert {line[: len(line) - len(line.lstrip())] for line in lines} == {" " * 4, "  ", " " * 9}


def test_pipe_gets_whole_lines() -> None:
    lines = piped(Prose("word " * 100, 4), table([("label:", "word " * 100)]), LINE).splitlines()
    assert lines == ["    " + "word " * 99 + "word", "label: " + "word " * 99 + "word", LINE]


def test_lines_have_no_trailing_space() -> None:
    rows = table([("a", "b"), ("a long one", "b " * 60)], ["x", ""])
    assert not [line for line in (shown(rows) + piped(rows)).splitlines() if line != line.rstrip()]


def test_table_that_does_not_fit_is_replaced() -> None:
    part = Alternative(table([("a" * 50, "b" * 50)]), ("narrow",))
    assert shown(part, width=80) == "narrow\n"
    assert "narrow" not in shown(part, width=101) + piped(part)
    assert piped(Alternative(table([("a" * 50, "b" * 100)]), ("narrow",))) == "narrow\n"


def test_markup_and_emoji_are_text() -> None:
    hostile = "[red]a[/red] [/] :smile: [link=x]"
    for part in (hostile, Prose(hostile), Prose(f"{hostile} é"), table([(hostile, hostile)]), text(hostile)):
        assert hostile in shown(part)


@given(st.text(st.characters()))
def test_control_characters_are_visible(hostile: str) -> None:
    for part in (Prose(hostile), Prose(f"é{hostile}"), table([("x", hostile), (hostile, "x")]), text((hostile, "red"))):
        assert all(char == "\n" or char.isprintable() for char in shown(part))


CELLS = st.text("ab \t\né", max_size=5) | st.sampled_from(["", "x" * 60, "y" * 61, "a word"])


@st.composite
def tables(draw: st.DrawFn) -> Rows:
    rows = draw(st.integers(1, 3).flatmap(lambda count: st.lists(st.tuples(*[CELLS] * count), min_size=1, max_size=3)))
    assume(any(cell.strip() for row in rows for cell in row))  # rich prints no line for a table of blanks
    return table(rows, indent=draw(st.integers(0, 3)), gap=draw(st.integers(1, 3)), right=draw(st.booleans()))


@given(st.one_of(tables(), CELLS.map(text), CELLS.map(lambda words: Prose(words, 2)), CELLS))
def test_pipe_gets_what_rich_lays_out(part: Part) -> None:
    wide = console(io.StringIO(), {"COLUMNS": str(UNLIMITED)})
    assert rendered(None, part) == rendered(wide, part)


@given(tables())
def test_pipe_replaces_the_same_tables_as_rich(part: Rows) -> None:
    wide, alternative = console(io.StringIO(), {"COLUMNS": str(UNLIMITED)}), Alternative(part, ("narrow",))
    assert rendered(None, alternative) == rendered(wide, alternative)


def test_pipe_needs_no_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    rows = table([(text(("RED", RED)), "b"), ("a", "c")], indent=1)
    assert piped(Prose("a b"), rows, Alternative(rows, ()), text("x")) == "a b\n" + 2 * " RED b\n a   c\n" + "x\n"


def test_lines_of_text_keep_their_indentation() -> None:
    assert piped(*paragraphs("a\n\n    b c\n")) == "a\n\n    b c\n"


@pytest.mark.parametrize(
    ("stream", "environ", "expected"),
    [
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"NO_COLOR": ""}, True),
        (Terminal(), {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
        (io.StringIO(), {"GITHUB_ACTIONS": "true"}, False),
        (io.StringIO(), {"FORCE_COLOR": "1"}, True),
        (io.StringIO(), {"FORCE_COLOR": "1", "TERM": "dumb"}, False),
    ],
)
def test_colour_depends_on_stream_and_environment(stream: io.StringIO, environ: dict[str, str], expected: bool) -> None:
    target = console(stream, {"TERM": "xterm-256color", **environ})
    assert ("\x1b[1;31m" in rendered(target, text(("red", "bold red")))) is expected


@pytest.mark.parametrize(
    ("stream", "environ", "expected"),
    [
        (Terminal(), {}, True),
        (Terminal(), {"TERM": "dumb"}, False),
        (Terminal(), {"GITHUB_ACTIONS": "true"}, False),
        (io.StringIO(), {"FORCE_COLOR": "1"}, False),
        (io.StringIO(), {"TTY_COMPATIBLE": "1", "TTY_INTERACTIVE": "1"}, False),
    ],
)
def test_only_terminals_are_animated(stream: io.StringIO, environ: dict[str, str], expected: bool) -> None:
    target = console(stream, {"TERM": "xterm", **environ})
    assert target is not None
    assert target.is_interactive is expected


def test_columns_apply_to_a_pipe() -> None:
    lines = rendered(console(io.StringIO(), {"COLUMNS": "40"}), Prose("word " * 60)).splitlines()
    assert max(map(len, lines)) <= 40


def test_colour_leaves_the_text_unchanged() -> None:
    part = text(("RED", "bold red"), ": text")
    assert coloured(part) == "\x1b[1;31mRED\x1b[0m: text\n"
    assert shown(part) == "RED: text\n"


def test_warning_shows_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    warn("lost \x1b]0;title\x07")
    assert capsys.readouterr().err == "megatrix: lost \\x1b]0;title\\x07\n"
