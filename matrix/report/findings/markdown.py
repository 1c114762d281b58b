"""Markdown: findings as a table, and the texts of others in code spans, code blocks and cells of tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from matrix.report.findings.findings import Findings, Severity
from matrix.verdicts.text import one_line

WIDTH: Final = 160  # characters of a log text in a table
BREAKS: Final = {Severity.ERROR: "**yes**", Severity.WARNING: "maybe", Severity.NOTE: "no"}


def markdown(findings: Findings) -> str:
    """Return the summary, then a table of the findings."""
    rows = [
        (BREAKS[finding.severity], *map(escaped, (finding.topic.id, finding.message, str(finding.place or ""))))
        for finding in findings.findings
    ]
    sentences = [
        f"**{escaped(text)}**" if not number else escaped(text) for number, text in enumerate(findings.summary)
    ]
    return "\n\n".join(filter(None, [*sentences, table(("breaks", "failure", "what", "where"), rows)])) + "\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of cells that are Markdown, "" without rows."""
    lines = [head, ["---"] * len(head), *rows] if rows else []
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escaped(text: str) -> str:
    """Return a text on one line, of which nothing is markup, a mention or a cell of its own."""
    line = re.sub(r"([\\|`*_\[\]#~])", r"\\\1", one_line(text, 600))
    return line.replace("<", "&lt;").replace("@", "&#64;")


def code(text: str) -> str:
    """Return a text as a code span that is safe in a table."""
    line = one_line(text, WIDTH).replace("|", "¦") or " "
    ticks = _fence(line, 1)
    return f"{ticks} {line} {ticks}" if "`" in line else f"`{line}`"


def block(text: str) -> str:
    """Return a text as a code block."""
    ticks = _fence(text, 3)
    return f"{ticks}text\n{text}\n{ticks}"


def _fence(text: str, least: int) -> str:
    """Return more backticks than stand together in a text."""
    return "`" * max(least, max(map(len, re.findall("`+", text)), default=0) + 1)
