"""The error for users: what happened, what was got, what was expected, and how to fix it; numbers with their nouns."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final

LONGEST: Final = 1_000  # characters shown of one part of an error; a value in a file can have megabytes


class ExitStatus(IntEnum):
    """The exit statuses of every command; docs/commands.md has them as a table. Of `check`, NOTHING is no answer."""

    GOOD = 0
    BAD = 1
    MISTAKE = 2
    NOTHING = 3
    INTERRUPTED = 130  # as in a shell


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a command that can go on, with the text that states how."""


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
        lines = [f"{_bounded(where)}: {_bounded(what)}" if where else _bounded(what)]
        if got is not None:
            lines.append(f"  got:      {_bounded(got)}")
        if expected is not None:
            lines.append(f"  expected: {_bounded(expected)}")
        if fix is not None:
            lines.append(f"  fix:      {_bounded(fix)}")
        super().__init__("\n".join(lines))

    @property
    def errors(self) -> tuple[MatrixError, ...]:
        """Return the errors that it consists of: itself, or several."""
        return (self,)

    def to_json(self) -> dict[str, str | None]:
        """Return the parts as plain JSON values."""
        return {
            name: None if part is None else _bounded(part)
            for name, part in vars(self).items()
            if name in ("what", "where", "got", "expected", "fix")
        }

    @property
    def brief(self) -> str:
        """Return the error in one line, for a report."""
        parts = (self.where, self.what, self.got and f"got {self.got}", self.expected and f"expected {self.expected}")
        return ": ".join(" ".join(_bounded(part).split()) for part in parts if part)


class CombinedError(MatrixError):
    """Several errors at once, such as all problems of a catalog; its parts are those of the first."""

    def __init__(self, errors: Sequence[MatrixError]) -> None:
        error = errors[0]
        super().__init__(error.what, where=error.where, got=error.got, expected=error.expected, fix=error.fix)
        self.args, self._errors = ("\n".join(map(str, errors)),), tuple(errors)

    @property
    def errors(self) -> tuple[MatrixError, ...]:
        """Return the errors."""
        return self._errors


def _bounded(part: object) -> str:
    """Return the text of a part; of a long one the start, with its length."""
    text = str(part)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text):,} characters)"


def counted(count: float, noun: str) -> str:
    """Return a number with its noun, in the singular for one: "1 case", "2 cases"."""
    return f"{count:,.0f} {noun}{'s' * (f'{count:.0f}' != '1')}"


def closest(word: str, known: Iterable[str], *, count: int = 3, otherwise: str = "") -> str:
    """Return a "did you mean ...?" for `word`; when none is close, `otherwise` or the first known words."""
    options = sorted(set(known), key=_natural)
    near = difflib.get_close_matches(word[:LONGEST], options, n=count, cutoff=0.6)
    if near:
        return f"did you mean {' or '.join(near)}?"
    listed = ", ".join(options[:12])
    return otherwise or f"one of: {listed}{', ...' if len(options) > 12 else ''}"


def _natural(word: str) -> list[tuple[int, str]]:
    """Return what a word is sorted by: 2.9.0 comes before 2.10.0."""
    return [(int(part), "") if part[0].isdecimal() else (-1, part) for part in re.findall(r"[0-9]{1,99}|[^0-9]+", word)]
