"""What leaves holds no markup, mention or command of a log, in any format."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from matrix.ground.verdicts.outcome import Frame, Outcome, OutcomeKind, Raised
from matrix.ground.verdicts.record import Record, Verdict
from matrix.prove.store.stored_run import Night
from matrix.show.bisection import bisection_page, issue_text, render
from matrix.show.changes import Changes
from matrix.show.escaping import (
    block,
    code,
    escape_markers,
    github_text,
    json_text,
    markdown_text,
    xml_document,
)
from matrix.show.finding_sources import of_bisection
from matrix.show.findings import FORMATS, Findings, night_junit
from matrix.show.run_summary import job_summary, summary
from matrix.show.terminal import json_object
from tests.profiles import tries
from tests.unit.show.finding_samples import hostile
from tests.unit.show.samples import bisection, record
from tests.unit.terminals import piped

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


def answer_in(write: Callable[[Findings], str], text: str) -> str:
    return write(of_bisection(bisection(text)))


# What a command prints, and may print in a job of CI; of the format github the first two colons of each line are ours.
PRINTED: Final[dict[str, Callable[[str], str]]] = {
    **{f"findings {name}": partial(finding_in, write) for name, write in FORMATS.items()},
    **{f"bisection {name}": partial(answer_in, write) for name, write in FORMATS.items()},
    "job summary": lambda text: job_summary(night_of(text), NOTHING_BEFORE),
    "junit": lambda text: night_junit(night_of(text)),
    "bisection issue": lambda text: issue_text(bisection(text or "x"), text, {text: text}),
    "bisection terminal": lambda text: piped(*render(bisection(text), "page.html")),
    "summary terminal": lambda text: piped(*summary(night_of(text).records)),
    "json": lambda text: json_object("records/1", [{"text": text}]),
}
MARKDOWN: Final = ("findings markdown", "bisection markdown", "job summary", "bisection issue")


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
