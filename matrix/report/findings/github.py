"""Findings as workflow commands of GitHub Actions: annotations at their lines."""

from __future__ import annotations

from typing import Final

from matrix.report.findings.findings import Findings, Severity
from matrix.verdicts.text import visible

COMMANDS: Final = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def github(findings: Findings) -> str:
    """Return a command for each finding, and a notice for each sentence of the summary."""
    lines = []
    for finding in findings.findings:
        place = finding.place
        file = f"file={escaped(place.path, value=True)},line={max(place.line, 1)}," if place else ""
        title = escaped(finding.headline, value=True)
        lines.append(f"::{COMMANDS[finding.severity]} {file}title={title}::{escaped(finding.message)}")
    title = escaped(findings.command, value=True)
    return "\n".join([*lines, *(f"::notice title={title}::{escaped(sentence)}" for sentence in findings.summary)])


def escaped(text: str, *, value: bool = False) -> str:
    """Return a text as the message of a command, or as the value of one of its properties."""
    line = visible(text).replace("%", "%25").replace("\n", "%0A")
    return line.replace(":", "%3A").replace(",", "%2C") if value else line
