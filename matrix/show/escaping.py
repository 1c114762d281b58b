"""Escaping of texts that leave: one function for each format, so that no text of a log is markup or a command.

HTML is escaped by its templates (document.py). What leaves through the standard output of a CI job passes
`escape_markers`, too.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from matrix.ground.verdicts.text import one_line, visible

WIDTH: Final = 160  # characters of a log text in a table
LONG: Final = 2_000  # characters of a command elsewhere
# GitHub's runner executes a line that starts with :: after blanks, and ##[ anywhere in a line (actions/runner,
# ActionCommand.cs, read at its main of 2026-11); Azure Pipelines ##vso[, TeamCity ##teamcity[.
_COMMAND: Final = re.compile(r"(?m)^([^\S\n]*:)(?=:)|(#)(?=#(?:vso|teamcity)?\[)")


def escape_markers(text: str) -> str:
    """Return a text of which a CI service executes no line: a blank is within what starts a command."""
    return _COMMAND.sub(lambda match: f"{match[0]} ", text)


def markdown_text(text: str) -> str:
    """Return a text on one line, of which nothing is markup, a mention or a cell of its own."""
    line = escape_markers(one_line(text, 600)).replace("<", "&lt;")
    return re.sub(r"([\\|`*_\[\]#~])", r"\\\1", line).replace("@", "&#64;")


def code(text: str, *, in_table: bool = True) -> str:
    """Return a text as a code span. One in a table has no |."""
    line = escape_markers(one_line(text, WIDTH if in_table else LONG)).replace("|", "¦" if in_table else "|") or " "
    ticks = _fence(line, 1)
    return f"{ticks} {line} {ticks}" if "`" in line else f"`{line}`"


def block(text: str) -> str:
    """Return a text as a code block."""
    ticks = _fence(text, 3)
    return f"{ticks}text\n{escape_markers(visible(text))}\n{ticks}"


def github_text(text: str, *, value: bool = False) -> str:
    """Return a text as the message of a workflow command, or as the value of one of its properties."""
    line = visible(text).replace("%", "%25").replace("\n", "%0A")
    return line.replace(":", "%3A").replace(",", "%2C") if value else line


def xml_document(document: str) -> str:
    """Return an XML document, of ElementTree and visible texts, of which a CI service executes no line."""
    return re.sub(r"(?m)^([^\S\n]*):(?=:)", r"\1&#58;", document).replace("##", "#&#35;")


def json_text(value: Any, indent: int | None = None) -> str:
    """Return plain values as JSON in ASCII, of which a CI service executes no line."""
    return json.dumps(value, indent=indent).replace("##", "#\\u0023")


def _fence(text: str, least: int) -> str:
    """Return more backticks than stand together in a text."""
    return "`" * max(least, max(map(len, re.findall("`+", text)), default=0) + 1)
