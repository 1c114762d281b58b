"""Regular expressions of signatures: the text that every match contains, and the repeats that may never end.

The parse tree is that of Python's own parser, which is private to `re` and stable since Python 2.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

_PARSER: Final[Any] = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
_REPEATS: Final = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
_LOOKS: Final = ("ASSERT", "ASSERT_NOT")
_GAP: Final = "\0"  # between texts that need not be adjacent
# Patterns whose form alone shows that they compile and match in one way: single characters, each repeated at most
# once, and groups of them that are not repeated. Parsing and compiling takes 0.2 ms for each of the others.
_ATOM: Final = r"(?:[^\\()\[\]{}*+?|^$]|\\[^\w]|\\[dDsSwW]|\[\^?[\w ./:]+\])[*+?]?"
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


def longest_text(pattern: str) -> str:
    """Return the longest text that every match contains, "" where none is certain."""
    return max(literals(pattern), key=len, default="")


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
