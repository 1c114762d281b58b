"""The answer of `megatrix check` as SARIF, GitHub annotations and Markdown."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from matrix.check.answer import CheckResult, Clash
from matrix.check.checking import Question, check
from matrix.check.stack import Statement, build
from matrix.report.check_formats import FORMATS, github, markdown, place, sarif
from tests.founding import MASK, SAVE
from tests.unit.catalogs import real


def result(core: str = "0.8.0", *clashes: Clash) -> CheckResult:
    said = [Statement("torch", "2.4.1", "requirements.txt:3"), Statement("mcore", core, "requirements.txt:4")]
    return replace(check(real(), build(real(), said), Question(), {}), clashes=clashes)


def test_sarif_has_a_result_at_its_line() -> None:
    log = json.loads(sarif(result()))
    (run,) = log["runs"]
    first = run["results"][0]
    assert (log["version"], first["ruleId"], first["level"]) == ("2.1.0", SAVE, "error")
    (where,) = first["locations"]
    assert where["physicalLocation"]["artifactLocation"]["uri"] == "requirements.txt"
    assert where["physicalLocation"]["region"] == {"startLine": 3}
    assert {one["ruleId"] for one in run["results"]} == {one["id"] for one in run["tool"]["driver"]["rules"]}
    assert {one["level"] for one in run["results"] if one["ruleId"] != SAVE} == {"warning"}


def test_github_annotates_the_line() -> None:
    first, *_, last = github(result()).splitlines()
    assert first.startswith(f"::error file=requirements.txt,line=3,title={SAVE}%3A Saving a distributed checkpoint")
    assert last.startswith("::notice title=megatrix check::1 known break in this stack")


def test_markdown_is_one_table() -> None:
    lines = markdown(result()).splitlines()
    assert lines[0].startswith("**1 known break in this stack")
    assert lines[4].startswith(f"| **yes** | {SAVE} | ")
    assert any(line.startswith(f"| maybe | {MASK} | ") for line in lines)


def test_call_is_at_the_line_of_the_engine() -> None:
    said = [Statement("te", "1.3.0", "requirements.txt:7"), Statement("mcore", "0.16.1", "requirements.txt:4")]
    lines = github(check(real(), build(real(), said), Question(), {})).splitlines()
    call = next(line for line in lines if "hybrid-context-parallel" in line)
    assert call.startswith(
        "::warning file=requirements.txt,line=7,title=call%3A a call into Transformer Engine breaks::"
    )
    assert "TEDotProductAttention.forward" in call


def test_stack_without_findings_is_one_sentence() -> None:
    nothing = replace(result(), failures=(), calls=())
    assert markdown(nothing) == "**nothing is known to break in this stack; not named: Transformer Engine**\n"
    assert json.loads(sarif(nothing))["runs"][0]["results"] == []


@pytest.mark.parametrize("text", ["a\n::error::b", "100%", "| a | `b` <script> @c", "\x1b[31m\x07", "\ud800"])
@pytest.mark.parametrize("name", FORMATS)
def test_text_of_a_file_can_not_inject(name: str, text: str) -> None:
    made = FORMATS[name](result("0.9.0", Clash(text, f"{text}:5")))
    made.encode()
    assert not [line for line in made.splitlines()[:1] if name == "github" and not line.startswith("::error file=")]
    assert "\n::error::b" not in made
    assert "\x1b" not in made
    assert name != "markdown" or "<script>" not in made


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a/b:3", ("a/b", 3)),
        ("command line", ("", 0)),
        ("in ngc-24.07", ("", 0)),
        ("", ("", 0)),
        (__file__, (__file__, 1)),
    ],
)
def test_place_is_a_file_and_a_line(source: str, expected: tuple[str, int]) -> None:
    assert place(source) == expected
