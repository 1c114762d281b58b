"""Findings as workflow commands of GitHub Actions: annotations at their lines."""

from __future__ import annotations

from typing import Final

from matrix.show.escaping import github_text
from matrix.show.findings.findings import Findings, Severity

COMMANDS: Final = dict(zip(Severity, ("error", "warning", "notice", "warning"), strict=True))


def github(findings: Findings) -> str:
    """Return a command for each finding, and a notice for each sentence of the summary."""
    lines = []
    for finding in findings.findings:
        place = finding.place
        file = f"file={github_text(place.path, value=True)},line={max(place.line, 1)}," if place else ""
        title = github_text(finding.headline, value=True)
        lines.append(f"::{COMMANDS[finding.severity]} {file}title={title}::{github_text(finding.message)}")
    title = github_text(findings.command, value=True)
    return "\n".join([*lines, *(f"::notice title={title}::{github_text(sentence)}" for sentence in findings.summary)])
