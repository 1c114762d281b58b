"""`--select EXPR`: an expression that selects cases. An unknown name or version is an error."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Final

from packaging.specifiers import InvalidSpecifier
from packaging.version import InvalidVersion

from matrix.catalog.cell import WRITER, pinned
from matrix.catalog.versions import NONE, Range, is_version
from matrix.errors import MatrixError, closest
from matrix.planning.planned import Planned

Test = Callable[[Planned], bool]

VERSIONED: Final = ("torch", "mcore", "te", "driver", "python", "sm", "gpus", *WRITER)
NAMED: Final[dict[str, Callable[[Planned], str]]] = {
    "failure": lambda planned: planned.failure,
    "case": lambda planned: planned.case,
    "level": lambda planned: planned.level.value,
    "base": lambda planned: planned.cell.base,
    "cell": lambda planned: planned.cell.id,
    "expectation": lambda planned: planned.expectation.value,
}
TOKEN: Final = re.compile(r"\s*(?:(and|or|not|\(|\))(?![\w.-])|(\()|(\))|([\w-]+)\s*(==|!=|>=|<=|>|<|=)\s*([^\s()]+))")
DEEPEST: Final = 50  # levels of parentheses and "not"
FORM: Final = 'conditions joined by and, or, not and parentheses: "mcore==0.8.* and torch>=2.4 and not case==pp2"'


def select(planned: Sequence[Planned], expression: str) -> list[Planned]:
    """Return the cases that match `expression`.

    Axes and packages take PEP 440 comparisons (mcore>=0.9, torch==2.4.*, numpy>=2); names take == and != with shell
    patterns (base==torch-*, failure==save-breaks). Raises MatrixError for a bad expression, a name that no case has,
    and an expression that selects nothing.
    """
    test = compile_expression(expression, planned)
    chosen = [item for item in planned if test(item)]
    if not chosen:
        raise MatrixError(
            "the selection selects nothing",
            got=expression,
            expected=f"at least one of {len(planned)} cases",
            fix="megatrix plan --select 'failure==*' lists all; megatrix explain CELL explains one cell",
        )
    return chosen


def compile_expression(expression: str, planned: Sequence[Planned]) -> Test:
    """Return the expression as a test; names and versions must occur in `planned`."""
    words = _words(expression)
    position = 0

    def peek() -> str | tuple[str, str, str] | None:
        return words[position] if position < len(words) else None

    def take() -> str | tuple[str, str, str] | None:
        nonlocal position
        word = peek()
        position += 1
        return word

    def either(depth: int) -> Test:
        terms = [both(depth)]
        while peek() == "or":
            take()
            terms.append(both(depth))
        return terms[0] if len(terms) == 1 else lambda item: any(term(item) for term in terms)

    def both(depth: int) -> Test:
        terms = [single(depth)]
        while peek() == "and":
            take()
            terms.append(single(depth))
        return terms[0] if len(terms) == 1 else lambda item: all(term(item) for term in terms)

    def single(depth: int) -> Test:
        if depth > DEEPEST:
            raise MatrixError("the selection is nested too deeply", expected=f"at most {DEEPEST} levels of ( and not")
        word = take()
        if word == "not":
            inner = single(depth + 1)
            return lambda item: not inner(item)
        if word == "(":
            inner = either(depth + 1)
            if take() != ")":
                raise MatrixError("a parenthesis is not closed", got=expression, expected=FORM)
            return inner
        if isinstance(word, tuple):
            return _condition(*word, planned)
        raise MatrixError("the selection ends too early or has a stray word", got=expression, expected=FORM)

    test = either(0)
    if position != len(words):
        raise MatrixError("the selection goes on after its end", got=expression, expected=FORM)
    return test


def _words(expression: str) -> list[str | tuple[str, str, str]]:
    words: list[str | tuple[str, str, str]] = []
    place = 0
    text = expression.rstrip()
    while place < len(text):
        found = TOKEN.match(text, place)
        if not found:
            raise MatrixError("the selection can't be read", got=f"{text[:place]}>>>{text[place:]}", expected=FORM)
        word = found[1] or found[2] or found[3]
        words.append(word if word else (found[4], found[5], found[6]))
        place = found.end()
    return words


def _condition(name: str, operator: str, value: str, planned: Sequence[Planned]) -> Test:
    operator = "==" if operator == "=" else operator
    if name in NAMED:
        if operator not in ("==", "!="):
            raise MatrixError(f"{name} is a name", got=f"{name}{operator}{value}", expected="== or !=")
        read, equal = NAMED[name], operator == "=="
        known = {read(item) for item in planned}
        if not any(fnmatchcase(word, value) for word in known):
            raise MatrixError(f"no case has this {name}", got=value, fix=closest(value, known))
        return lambda item: fnmatchcase(read(item), value) is equal
    if name not in VERSIONED:
        packages = {name for item in planned for name in pinned(item.cell.packages + item.cell.provided)}
        if name not in packages:
            raise MatrixError("unknown axis or name", got=name, fix=closest(name, {*NAMED, *VERSIONED, *packages}))
    if value == "none" and operator in ("==", "!="):
        equal = operator == "=="
        return lambda item: (item.cell.version(name) == NONE) is equal
    try:
        bound = Range(f"{operator}{value}")
    except (InvalidSpecifier, InvalidVersion):
        expected = "a PEP 440 version" if operator != "==" or not is_version(value.rstrip(".*")) else "2.4.* or 2.4.1"
        raise MatrixError("not a version", got=f"{name}{operator}{value}", expected=expected) from None
    known = {item.cell.version(name) for item in planned}
    if operator == "==" and not any(version in bound for version in known):
        raise MatrixError(f"no case has this {name}", got=value, fix=closest(value, known))
    return lambda item: item.cell.version(name) in bound
