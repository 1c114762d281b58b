"""Findings of every severity."""

from __future__ import annotations

from typing import Final

from matrix.ground.catalog.stack import Place
from matrix.show.findings import Findings, FindingTopic, ReportedFinding, Severity

PLACE: Final = Place("a, b.py", 3)


def finding(severity: Severity = Severity.ERROR, place: Place | None = PLACE) -> ReportedFinding:
    """Return a finding whose texts need escaping."""
    return ReportedFinding(FindingTopic("dud", "It breaks"), "dud: It breaks", "got 100%", severity, place)


def hostile(text: str) -> Findings:
    """Return findings with `text` in every field."""
    topic, place = FindingTopic(text, text, text), Place(text, 5)
    return Findings(text, (ReportedFinding(topic, text, text, Severity.ERROR, place),), (text, text))
