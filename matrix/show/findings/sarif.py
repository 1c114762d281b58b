"""Findings as a SARIF 2.1.0 log, for code scanning."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, Final

from matrix import __version__
from matrix.ground.verdicts.text import visible
from matrix.show.escaping import json_text
from matrix.show.findings.findings import Findings, ReportedFinding

SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(findings: Findings) -> str:
    """Return the log: a rule for each topic, a result for each finding."""
    topics = {finding.topic.id: finding.topic for finding in findings.findings}
    rules = [
        {"id": id, "shortDescription": {"text": topic.title}, "help": {"text": topic.help or topic.title}}
        for id, topic in topics.items()
    ]
    driver = {"name": findings.command, "version": __version__, "rules": rules}
    results = [_result(finding) for finding in findings.findings]
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}
    return json_text(_visible(log), indent=2)


def _result(finding: ReportedFinding) -> dict[str, Any]:
    result = {"ruleId": finding.topic.id, "level": finding.severity.value, "message": {"text": finding.message}}
    if not finding.place:
        return result
    location = {
        "artifactLocation": {"uri": PurePath(finding.place.path).as_posix()},
        "region": {"startLine": max(finding.place.line, 1)},
    }
    return {**result, "locations": [{"physicalLocation": location}]}


def _visible(value: Any) -> Any:
    """Return plain values with the control characters of their texts written out."""
    if isinstance(value, dict):
        return {key: _visible(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_visible(part) for part in value]
    return visible(value) if isinstance(value, str) else value
