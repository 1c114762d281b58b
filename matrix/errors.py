"""The error for users: what happened, what was got, what was expected, and how to fix it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MatrixError(Exception):
    """An error in the input or the environment that the user can fix.

    The command line prints it without a traceback and exits with 2.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        got: object = None,
        expected: object = None,
        fix: str | None = None,
    ) -> None:
        self.what, self.where, self.got, self.expected, self.fix = what, where, got, expected, fix
        lines = [f"{where}: {what}" if where else what]
        if got is not None:
            lines.append(f"  got:      {got}")
        if expected is not None:
            lines.append(f"  expected: {expected}")
        if fix is not None:
            lines.append(f"  fix:      {fix}")
        super().__init__("\n".join(lines))

    @property
    def brief(self) -> str:
        """Return the error in one line, for a report."""
        parts = (self.where, self.what, self.got and f"got {self.got}", self.expected and f"expected {self.expected}")
        return ": ".join(" ".join(str(part).split()) for part in parts if part)


def closest(word: str, known: Iterable[str], *, count: int = 3) -> str:
    """Return a "did you mean ...?" for `word`, or the first known words when none is close."""
    options = sorted(set(known))
    near = difflib.get_close_matches(word, options, n=count, cutoff=0.6)
    if near:
        return f"did you mean {' or '.join(near)}?"
    shown = ", ".join(options[:12])
    return f"one of: {shown}{', ...' if len(options) > 12 else ''}"
