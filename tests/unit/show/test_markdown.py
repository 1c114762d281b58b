"""Markdown: the table of findings, and texts that are no markup."""

from __future__ import annotations

from matrix.show.findings import Findings, Severity, markdown, markdown_table
from tests.unit.show.finding_samples import finding


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
    assert markdown_table(["a"], []) == ""
