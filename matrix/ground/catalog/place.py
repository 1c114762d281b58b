"""Where a text states something: a file and a line, or a source without one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A source and its line, counted from 1; line 0 is a source without lines, such as "command line" or an image."""

    path: str
    line: int = 0

    def __str__(self) -> str:
        """Return "path:line", or the path alone without a line."""
        return f"{self.path}:{self.line}" if self.line else self.path
