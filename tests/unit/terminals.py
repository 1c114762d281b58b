"""What a terminal or a pipe shows."""

from __future__ import annotations

import io
import re

from matrix.show.terminal import Part, console, rendered


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def shown(*parts: Part, width: int = 80) -> str:
    """Return what a terminal of this width shows, without colours."""
    return rendered(console(Terminal(), {"COLUMNS": str(width), "NO_COLOR": "1", "TERM": "xterm"}), *parts)


def coloured(*parts: Part, width: int = 80) -> str:
    """Return what a terminal of this width gets."""
    return rendered(console(Terminal(), {"COLUMNS": str(width), "TERM": "xterm"}), *parts)


def piped(*parts: Part) -> str:
    """Return what a pipe gets."""
    return rendered(console(io.StringIO(), {"TERM": "xterm"}), *parts)


def words(text: str) -> str:
    """Return the text with one space between words."""
    return re.sub(r"\s+", " ", text)
