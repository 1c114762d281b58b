"""The answer of a bisection: in the terminal, and as the text of an issue."""

from __future__ import annotations

from dataclasses import replace

from matrix.bisection.search import ResultKind
from matrix.report.bisection import issue_text, render
from tests.unit.report.samples import attribution, bisection
from tests.unit.terminals import piped


def test_answer_comes_first_and_page_last() -> None:
    lines = piped(*render(bisection("x"), "page.html")).splitlines()
    assert (lines[0], lines[-1]) == ("first bad: Megatron-LM x", "  page: page.html")
    assert "  before it:     x" in lines
    assert "  good: x" in lines


def test_long_list_of_candidates_is_cut_and_counted() -> None:
    summary = bisection("x")
    labels = tuple(f"r{number}" for number in range(20))
    changes = {
        axis: replace(change, kind=ResultKind.AMBIGUOUS, candidates=labels) for axis, change in summary.changes.items()
    }
    text = piped(*render(replace(summary, changes=changes), "page.html"))
    assert "r11" in text
    assert "r12" not in text
    assert "... 20 in all" in text


def test_mixtures_follow_what_differs() -> None:
    lines = piped(*render(attribution("x"), "page.html")).splitlines()
    assert lines[0] == "guilty:"
    assert "  x:        x -> x" in lines
    assert "  bad: x" in lines


def test_issue_has_a_row_for_each_point() -> None:
    text = issue_text(bisection("a|b"))
    assert text.startswith("**a|b**\n\nFirst bad: Megatron-LM a|b\n(before it: a|b)\n")
    assert [line for line in text.splitlines() if line.startswith(r"| a\|b |")] == [
        rf"| a\|b | {result} | a\|b |" for result in ("good", "bad", "skip")
    ]


def test_issue_of_a_command_names_packages() -> None:
    summary = bisection("x")
    (change,) = summary.changes.values()
    probes = tuple(replace(probe, resolved={"torch": "2.4.0", "numpy": "2.0"}) for probe in change.probes)
    summary = replace(summary, changes={"mcore": replace(change, clone="", probes=probes)})
    assert "good: `python save.py` with torch 2.4.0\n" in issue_text(summary, "python save.py")
