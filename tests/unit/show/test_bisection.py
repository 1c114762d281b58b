"""The answer of a bisection: in the terminal, and as the text of an issue."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from matrix.ground.catalog.stack import TE, TORCH
from matrix.prove.bisection.search import ResultKind
from matrix.show.bisection import bisection_page, issue_text, render
from tests.unit.prove.bisection.test_joint import found, since
from tests.unit.show.samples import attribution, bisection
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
    assert text.startswith("**a\\|b**\n\nFirst bad: Megatron-LM a\\|b\n(before it: a\\|b)\n")
    assert [line for line in text.splitlines() if line.startswith(r"| a\|b |")] == [
        rf"| a\|b | {result} | `a¦b` |" for result in ("good", "bad", "skip")
    ]


def test_issue_of_a_command_names_packages() -> None:
    summary = bisection("x")
    (change,) = summary.changes.values()
    probes = tuple(replace(probe, resolved={"torch": "2.4.0", "numpy": "2.0"}) for probe in change.probes)
    summary = replace(summary, changes={"mcore": replace(change, clone="", probes=probes)})
    assert "good: `python save.py` with torch 2.4.0\n" in issue_text(summary, "python save.py")


def test_text_and_page_hold_result_and_command(tmp_path: Path) -> None:
    summary = found(tmp_path, lambda item: since(str(item.cell.stack[TORCH]), "2.4.0"))

    for text in (piped(*render(summary, "page.html")), bisection_page(summary, "the issue")):
        assert "guilty: torch" in text
        assert "2.4.0" in text
        assert "megatrix run" in text
        assert "first bad: PyTorch 2.4.0" in text


def test_an_issue_of_packages_has_each_change(tmp_path: Path) -> None:
    """A point with an exception has its first line; a reader needs no folder of this machine."""
    summary = found(
        tmp_path, lambda item: since(str(item.cell.stack[TORCH]), "2.4.0") or since(str(item.cell.stack[TE]), "1.9")
    )
    text = issue_text(summary)

    assert text.count(f"**{summary.title}**") == len(summary.changes) == 2
    assert "First bad: PyTorch 2.4.0" in text
    assert "First bad: Transformer Engine 1.9" in text
    assert str(tmp_path) not in text


def test_page_of_packages_has_mixtures_and_changes() -> None:
    page = bisection_page(attribution("text"), "the issue")

    assert "Mixtures of both stacks" in page
    assert "In text: first bad: Megatron-LM text" in page
    assert all(result in page for result in ("passes", "shows the failure", "no result"))
    assert "Mixtures" not in bisection_page(bisection("text"), "the issue")
