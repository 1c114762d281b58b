"""Markdown: findings as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from matrix.show.escaping import markdown_text
from matrix.show.findings.findings import Findings, Severity

BREAKS: Final = dict(zip(Severity, ("**yes**", "maybe", "no", "not checked"), strict=True))


def markdown(findings: Findings) -> str:
    """Return the summary, then a table of the findings."""
    rows = [
        (BREAKS[finding.severity], *map(markdown_text, (finding.topic.id, finding.message, str(finding.place or ""))))
        for finding in findings.findings
    ]
    sentences = [
        f"**{markdown_text(text)}**" if not number else markdown_text(text)
        for number, text in enumerate(findings.summary)
    ]
    return "\n\n".join(filter(None, [*sentences, table(("breaks", "failure", "what", "where"), rows)])) + "\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of cells that are Markdown, "" without rows."""
    lines = [head, ["---"] * len(head), *rows] if rows else []
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
