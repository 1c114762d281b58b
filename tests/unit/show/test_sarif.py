"""The SARIF log: rules, results, locations."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from matrix.ground.catalog.stack import Place
from matrix.show.findings import Findings, Severity, sarif
from tests.unit.show.finding_samples import finding, hostile


def run_of(findings: Findings) -> Any:
    (run,) = json.loads(sarif(findings))["runs"]
    return run


def test_topic_is_a_rule_once() -> None:
    run = run_of(Findings("megatrix check", (finding(), finding(Severity.WARNING))))
    assert run["tool"]["driver"]["rules"] == [
        {"id": "dud", "shortDescription": {"text": "It breaks"}, "help": {"text": "It breaks"}}
    ]
    assert [(result["ruleId"], result["level"]) for result in run["results"]] == [("dud", "error"), ("dud", "warning")]


@pytest.mark.parametrize(("line", "shown"), [(3, 3), (0, 1)])
def test_result_is_at_its_line(line: int, shown: int) -> None:
    (result,) = run_of(Findings("x", (finding(place=Place("a/b.txt", line)),)))["results"]
    (location,) = result["locations"]
    assert location["physicalLocation"] == {"artifactLocation": {"uri": "a/b.txt"}, "region": {"startLine": shown}}


def test_result_without_place_has_no_location() -> None:
    assert "locations" not in run_of(Findings("x", (finding(place=None),)))["results"][0]


def test_no_findings_are_an_empty_log() -> None:
    assert run_of(Findings("x"))["results"] == []


def test_control_characters_are_written_out() -> None:
    findings = replace(hostile("\x1b[7m\x07\ud800"), findings=())
    assert run_of(findings)["tool"]["driver"]["name"] == "\\x07\\ud800"
