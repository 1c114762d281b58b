"""TOML files, and those of their texts that have a form of their own, such as versions and regular expressions."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from matrix.ground.catalog.codec import MalformedError, decode, shown
from matrix.ground.catalog.regular_file import read_regular, within_limits
from matrix.ground.catalog.versions import is_version
from matrix.ground.errors import MatrixError

_PARSER: Final[Any] = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
_REPEATS: Final = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
_LOOKS: Final = ("ASSERT", "ASSERT_NOT")
_GAP: Final = "\0"  # between texts that need not be adjacent
# Patterns whose form alone shows that they compile and match in one way: single characters, each repeated at most
# once, and groups of them that are not repeated. Parsing and compiling takes 0.2 ms for each of the others.
_ATOM: Final = r"(?:[^\\()\[\]{}*+?|^$]|\\[^\w]|\\[dDsSwW]|\[\^?[\w ./:;]+\])(?:[*+?]|\{[01],[1-9]\d{0,3}\})?"
_ITEMS: Final = rf"(?:{_ATOM}|\\b|\||\^|\$)*"
_PLAIN: Final = re.compile(rf"(?:\(\?[ms]\))?(?:{_ATOM}|\\b|\||\^|\$|\((?:\?[:!=])?{_ITEMS}\))*")
MOST_FIRSTS: Final = 256  # characters of a class that are compared one by one


@lru_cache(maxsize=4096)
def literals(pattern: str) -> tuple[str, ...]:
    """Return texts that every match contains, in their order; each is within one line. () where none is certain."""
    tree = _PARSER.parse(pattern)
    if tree.state.flags & re.IGNORECASE:
        return ()
    parts = "".join(_required(tree)).split(_GAP)
    return tuple(line for part in parts for line in re.split("[\r\n]", part) if line)


LITERAL: Final = 6  # characters that make a text of a pattern worth a search of a whole log


def longest_text(pattern: str) -> str:
    """Return the longest text that every match contains, "" where none is certain."""
    return max(literals(pattern), key=len, default="")


def long_texts(pattern: str) -> list[str]:
    """Return the texts that every match contains and that are worth a search of a whole log, or else the longest."""
    return [text for text in literals(pattern) if len(text) >= LITERAL] or [longest_text(pattern)]


def _required(items: Iterable[tuple[Any, Any]]) -> Iterator[str]:
    for op, value in items:
        kind = str(op)
        if kind == "LITERAL":
            yield chr(value)
        elif kind == "SUBPATTERN" and not value[1] & re.IGNORECASE:
            yield from _required(value[3])
        elif kind == "ATOMIC_GROUP":
            yield from _required(value)
        elif kind in _REPEATS and value[0] > 0:
            yield _GAP
            yield from _required(value[2])
            yield _GAP
        elif kind != "AT":  # an anchor has no width
            yield _GAP


def is_plain(pattern: str) -> bool:
    """Return whether a pattern is of a form that always compiles and can't take exponential time."""
    return _PLAIN.fullmatch(pattern) is not None


def ambiguity(pattern: str) -> str:
    """Return why a match of `pattern` may take exponential time, "" where it can't.

    In a repeat, each iteration must match in one way only: no repeat of variable length, no alternatives that start
    alike, no back-reference. Then the ways to match a text are as many as the ends of its repeats: a polynomial.
    Some harmless patterns are refused, such as `(a+b)+`.
    """
    return _ambiguity(_PARSER.parse(pattern), within=False)


def _ambiguity(items: Iterable[tuple[Any, Any]], *, within: bool) -> str:
    return next(filter(None, (_of_item(str(op), value, within) for op, value in items)), "")


def _of_item(kind: str, value: Any, within: bool) -> str:
    if kind in _REPEATS:
        least, most, body = value
        if within and least != most:
            return "a repeat of variable length inside a repeat"
        return _ambiguity(body, within=within or most > 1)
    if within and kind in ("GROUPREF", "GROUPREF_EXISTS"):
        return "a back-reference inside a repeat"
    if within and kind == "BRANCH" and not _start_apart(value[1]):
        return "alternatives that may start alike inside a repeat"
    return next(filter(None, (_ambiguity(body, within=within) for body in _bodies(kind, value))), "")


def _bodies(kind: str, value: Any) -> list[Any]:
    """Return the sequences in an item that is no repeat."""
    if kind in _LOOKS or kind == "SUBPATTERN":
        return [value[-1]]
    if kind == "BRANCH":
        return list(value[1])
    if kind == "GROUPREF_EXISTS":
        return [part for part in value[1:] if part]
    return [value] if kind == "ATOMIC_GROUP" else []


def _start_apart(alternatives: Iterable[Any]) -> bool:
    """Return whether no two alternatives can start with the same character."""
    taken_starts: set[str] = set()
    for alternative in alternatives:
        starts = _first(alternative)
        if starts is None or not taken_starts.isdisjoint(starts):
            return False
        taken_starts |= starts
    return True


def _first(items: Any) -> set[str] | None:
    """Return the characters with which a match starts, in lower case; None where that is not clear."""
    if not items:
        return None
    op, value = items[0]
    kind = str(op)
    if kind == "LITERAL":
        return {chr(value).lower()}
    if kind == "SUBPATTERN":
        return _first(value[3])
    if kind == "IN":
        characters: set[str] = set()
        for opcode, inner in value:
            if str(opcode) == "LITERAL":
                characters.add(chr(inner).lower())
            elif str(opcode) == "RANGE" and inner[1] - inner[0] < MOST_FIRSTS:
                characters |= {chr(code).lower() for code in range(inner[0], inner[1] + 1)}
            else:
                return None
        return characters
    return None


try:
    import tomli as tomllib  # compiled: a third of the time of tomllib; a cell need not have it
except ImportError:
    import tomllib  # type: ignore[no-redef, import-not-found]  # Python 3.10 has none

UNITS: Final = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}  # bytes


class Identifier(str):
    """A name that users type: only letters, digits and . _ + -."""

    @classmethod
    def from_plain(cls, value: Any) -> str:
        """Return the name. Raises MalformedError."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", decode(str, value)):
            raise MalformedError("not an id", got=shown(value), expected="letters, digits and . _ + -")
        return str(value)


class Month(str):
    """A month: "2025-04"."""

    @classmethod
    def from_plain(cls, value: Any) -> str:
        """Return the month. Raises MalformedError."""
        if not re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", decode(str, value)):
            raise MalformedError("not a month", got=shown(value), expected='year and month: "2025-04"')
        return str(value)


class VersionText(str):
    """A PEP 440 version, kept as written."""

    @classmethod
    def from_plain(cls, value: Any) -> str:
        """Return the version. Raises MalformedError."""
        if not is_version(decode(str, value)):
            raise MalformedError("not a version", got=shown(value), expected="a PEP 440 version: 1.8.0+37280ec")
        return str(value)


class Size(int):
    """Bytes, written as "64 MiB"."""

    @classmethod
    def from_plain(cls, value: Any) -> Size:
        """Return the bytes of a text. Raises MalformedError."""
        size = re.fullmatch(r"(\d+) ?([KMGT])iB", value) if isinstance(value, str) else None
        if size is None or int(size[1]) < 1:
            raise MalformedError("not a size", got=shown(value), expected='bytes with a unit: "64 MiB", "9 GiB"')
        return Size(int(size[1]) * UNITS[size[2]])


class Pattern(str):
    """A regular expression, searched in the text."""

    @classmethod
    def from_plain(cls, value: Any) -> str:
        """Return the expression. Raises MalformedError for one that does not compile or may take exponential time."""
        if is_plain(decode(str, value)):
            return str(value)
        try:
            re.compile(value)
        except re.error as error:
            raise MalformedError(
                "not a regular expression",
                got=f"{value!r}: {error}",
                expected="Python's re syntax",
                fix="use single quotes in TOML, so that \\ stays",
            ) from None
        if reason := ambiguity(value):
            raise MalformedError(
                "this regular expression may take exponential time",
                got=f"{shown(value)}: {reason}",
                expected="repeats whose iterations match in one way only",
                fix="repeat a character class instead of a group: [ab]+, not (a+b?)+",
            )
        return str(value)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the file's table. Raises MatrixError when it can't be read or is no TOML."""
    return toml_table(read_regular(path), str(path))


def toml_table(content: str | bytes, where: str) -> dict[str, Any]:
    """Return the table of a TOML file with this content. Raises MatrixError when it is no TOML."""
    try:
        with within_limits(where):
            try:
                return tomllib.loads(content if isinstance(content, str) else content.decode())
            except RecursionError as error:  # nested 1,000 times
                raise ValueError(str(error)) from None
    except ValueError as error:  # no UTF-8, no TOML, a number of 5,000 digits
        raise MatrixError("the file is not TOML", where=where, got=error, expected="TOML 1.0 in UTF-8") from None
