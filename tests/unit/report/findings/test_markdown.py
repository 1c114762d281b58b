"""Markdown: the table of findings, and texts that are no markup."""

from __future__ import annotations

import pytest

from matrix.report.findings.findings import Findings, Severity
from matrix.report.findings.markdown import block, code, escaped, markdown, table
from tests.unit.report.findings.samples import finding


def test_summary_comes_first_then_the_table() -> None:
    findings = Findings("x", (finding(), finding(Severity.WARNING, None)), ("2 breaks", "upgrade: no"))
    assert markdown(findings).splitlines() == [
        "**2 breaks**",
        "",
        "upgrade: no",
        "",
        "| breaks | failure | what | where |",
        "| --- | --- | --- | --- |",
        "| **yes** | dud | got 100% | a, b.py:3 |",
        "| maybe | dud | got 100% |  |",
    ]


def test_no_findings_are_the_summary_alone() -> None:
    assert markdown(Findings("x", (), ("nothing",))) == "**nothing**\n"


def test_table_without_rows_is_empty() -> None:
    assert table(["a"], []) == ""


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
    assert escaped(text) == shown


@pytest.mark.parametrize(("text", "shown"), [("a|b", "`a¦b`"), ("a ``b`` c", "``` a ``b`` c ```"), ("", "` `")])
def test_code_ends_where_its_text_ends(text: str, shown: str) -> None:
    assert code(text) == shown


def test_block_is_fenced_longer_than_its_text() -> None:
    assert block("a\n````\nb") == "`````text\na\n````\nb\n`````"
