"""Output on a terminal and in a pipe: wrapped between words, never cut, neither markup nor escape codes of others."""

from __future__ import annotations

import io
import json
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from matrix.ground.verdicts.outcome import Frame, Outcome, OutcomeKind, Raised
from matrix.ground.verdicts.record import Record, Verdict
from matrix.prove.store.stored_run import Night
from matrix.show.bisection import bisection_page, issue_text, render
from matrix.show.findings import FORMATS, Findings, night_junit
from matrix.show.run_summary import Changes, job_summary, summary
from matrix.show.terminal import (
    RED,
    UNLIMITED,
    Alternative,
    Part,
    Prose,
    Rows,
    block,
    code,
    console,
    escape_markers,
    github_text,
    json_object,
    json_text,
    markdown_text,
    paragraphs,
    rendered,
    table,
    text,
    warn,
    xml_document,
)
from tests.profiles import tries
from tests.unit.show.finding_samples import hostile
from tests.unit.show.samples import bisection, record
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
    return table(rows, indent=draw(st.integers(0, 3)), gap=draw(st.integers(1, 3)))


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


NOTHING_BEFORE: Final = Changes("", (), ())
FRAGMENTS: Final = [
    "::error::x",
    "::stop-commands::y",
    "\n::add-mask::z",
    "\n \t::warning file=a::b",
    "##[error]c",
    "###[group]d",
    "##vso[task.setvariable]e",
    "##teamcity[f]",
    "@all",
    "<img src=x onerror=y>",
    "<!channel>",
    "</td><script>",
    "`",
    "```",
    "\n```\n",
    "~~~",
    "|",
    "\n",
    "\r",
    "\\",
    "*",
    "_",
    "[a](b)",
    "#1",
    "]]>",
    "&",
    "%0A::error::g",
    "\x1b[31m",
    "\u2028",
    " ",
    "a",
]
HOSTILE: Final = st.lists(st.sampled_from(FRAGMENTS) | st.text(st.characters(), max_size=5), max_size=8).map("".join)


def red(text: str) -> Record:
    """Return a red record with `text` wherever a log's text stands."""
    chain = (Raised("ValueError", text, (Frame(text, 1, text),)),)
    outcome = Outcome(OutcomeKind.RAISED, text, 0, chain=chain, evidence=text, attempts=(text,))
    return replace(record(Verdict.UNEXPLAINED), outcome=outcome, notes=(text,), resolved={"torch": text})


def lost(text: str) -> Record:
    """Return a record without a result, for the reason `text`."""
    return replace(record(Verdict.UNAVAILABLE), outcome=Outcome(OutcomeKind.UNAVAILABLE, text))


def night_of(text: str) -> Night:
    return Night("2026-01-31", (red(text), lost(text)))


def finding_in(write: Callable[[Findings], str], text: str) -> str:
    return write(hostile(text))


# What a command prints, and may print in a job of CI; of the format github the first two colons of each line are ours.
PRINTED: Final[dict[str, Callable[[str], str]]] = {
    **{f"findings {name}": partial(finding_in, write) for name, write in FORMATS.items()},
    "job summary": lambda text: job_summary(night_of(text), NOTHING_BEFORE),
    "junit": lambda text: night_junit(night_of(text)),
    "bisection issue": lambda text: issue_text(bisection(text or "x"), text, {text: text}),
    "bisection terminal": lambda text: piped(*render(bisection(text), "page.html")),
    "summary terminal": lambda text: piped(*summary(night_of(text).records)),
    "json": lambda text: json_object("records/1", [{"text": text}]),
}
MARKDOWN: Final = ("findings markdown", "job summary", "bisection issue")


def commands(printed: str) -> list[str]:
    """Return the lines that GitHub's runner, Azure Pipelines or TeamCity would execute."""
    return [
        line
        for line in printed.split("\n")
        if line.lstrip().startswith("::") or re.search(r"##(vso|teamcity)?\[", line)
    ]


def without_code(text: str) -> str:
    """Return Markdown without its code blocks and code spans."""
    text = re.sub(r"(?ms)^(`{3,})text\n.*?^\1$", "", text)
    text = re.sub(r"(?<![\\`])(`+)(?!`).*?(?<!`)\1(?!`)", "", text)
    return re.sub(r"</?(details|summary)>", "", text)


@pytest.mark.parametrize("name", PRINTED)
@tries(40)
@given(HOSTILE)
@example("::error::x\n::stop-commands::y ##[error]z")
def test_no_line_is_a_command_of_ci(name: str, text: str) -> None:
    printed = PRINTED[name](text)
    ours = (
        [line for line in commands(printed) if re.match("::(error|warning|notice) ", line)] if "github" in name else []
    )
    assert commands(printed) == ours
    assert "\x1b" not in printed


@pytest.mark.parametrize("name", MARKDOWN)
@tries(40)
@given(HOSTILE)
@example("<img src=x> @all `")
def test_nothing_of_a_log_is_markup(name: str, text: str) -> None:
    bare = without_code(PRINTED[name](text))
    assert not re.findall(r"@|<|(?<!\\)`", bare)


@tries(40)
@given(HOSTILE)
def test_a_page_holds_no_element_of_a_log(text: str) -> None:
    page = bisection_page(bisection(text), issue_text(bisection(text or "x"), text))
    assert not re.findall(r"<img|<!channel|</td><script", page)


@tries(40)
@given(HOSTILE)
def test_structured_formats_are_well_formed(text: str) -> None:
    assert json.loads(json_text({"a": [text]})) == {"a": [text]}
    assert len(ET.fromstring(night_junit(night_of(text))).findall("testsuite/testcase")) == 2


@given(HOSTILE)
def test_inert_text_stays_inert(text: str) -> None:
    assert commands(escape_markers(text)) == []
    assert escape_markers(escape_markers(text)) == escape_markers(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a::b", "a::b"),
        ("::error::a", ": :error::a"),
        ("a\n  ::b", "a\n  : :b"),
        ("a ##[b]", "a # #[b]"),
        ("## a [b]", "## a [b]"),
    ],
)
def test_inert_changes_commands_alone(text: str, shown: str) -> None:
    assert escape_markers(text) == shown


def test_xml_keeps_its_text() -> None:
    document = xml_document("<a>::b\n ::c ##[d]</a>")
    assert commands(document) == []
    assert ET.fromstring(document).text == "::b\n ::c ##[d]"


def test_a_command_keeps_its_pipes_outside_of_tables() -> None:
    assert code("a | b") == "`a ¦ b`"
    assert code("a | b", in_table=False) == "`a | b`"


@pytest.mark.parametrize(
    ("text", "message", "value"),
    [
        ("100%", "100%25", "100%25"),
        ("a\n::error::b", "a%0A::error::b", "a%0A%3A%3Aerror%3A%3Ab"),
        ("%0A", "%250A", "%250A"),
        ("a\rb", "a%0Ab", "a%0Ab"),
        ("a,b", "a,b", "a%2Cb"),
        ("\x1b[31m\x07", "\\x07", "\\x07"),
    ],
)
def test_text_is_github_text(text: str, message: str, value: str) -> None:
    assert (github_text(text), github_text(text, value=True)) == (message, value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("| a | `b` <script> @c", r"\| a \| \`b\` &lt;script> &#64;c"),
        ("a\nb", "a b"),
        ("[x](y) #1 _z_ ~~", r"\[x\](y) \#1 \_z\_ \~\~"),
        ("\\|", r"\\\|"),
    ],
)
def test_text_of_a_cell_is_no_markup(text: str, shown: str) -> None:
    assert markdown_text(text) == shown


@pytest.mark.parametrize(("text", "shown"), [("a|b", "`a¦b`"), ("a ``b`` c", "``` a ``b`` c ```"), ("", "` `")])
def test_code_ends_where_its_text_ends(text: str, shown: str) -> None:
    assert code(text) == shown


def test_block_is_fenced_longer_than_its_text() -> None:
    assert block("a\n````\nb") == "`````text\na\n````\nb\n`````"
