"""The conditions of a consuming package: their text, and the guard of a comparison."""

from __future__ import annotations

import ast
import hashlib
from typing import Final

from matrix.contract.definition import dotted
from matrix.contract.guard import Config, Guard, Takes, Unclear, negate
from matrix.contract.value import Anything, Choice, Literal, ParametersOf, Value, compare_versions

LONGEST_TEXT = 90  # characters of a condition; a longer one is cut and ends with a digest
ORDERS: Final = {ast.GtE: ">=", ast.Gt: ">", ast.LtE: "<=", ast.Lt: "<", ast.Eq: "==", ast.NotEq: "!="}
WORDS: Final = {**ORDERS, ast.In: "in", ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not"}
POSITIVE: Final = {ast.NotEq: "==", ast.NotIn: "in", ast.IsNot: "is"}


def shown(node: ast.AST) -> str:
    """Write a condition in short form. Equal texts are equal conditions, so every omission is marked by a digest."""
    return shortened(_text(node))


def shortened(text: str) -> str:
    """Cut a text that is too long for a report; a digest keeps it distinct from others with the same start."""
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 9]}...{_digest(text)}"


def written(choice: Choice, node: ast.AST) -> str:
    """Write an operand by its name at its origin, so that one condition has the same text everywhere."""
    if len(choice) == 1 and isinstance(choice[0][1], Anything) and choice[0][1].text:
        return choice[0][1].text
    return shown(node)


def compared(op: ast.cmpop, left: Value, right: Value, text: str) -> Guard:
    """Return the guard under which a comparison of two values holds; `text` is the comparison."""
    negative = type(op) in POSITIVE
    if isinstance(op, (ast.In, ast.NotIn)) and isinstance(left, Literal):
        if isinstance(right, ParametersOf):
            takes = Takes(right.path, str(left.value))
            return negate(takes) if negative else takes
        if isinstance(right, Literal) and isinstance(right.value, tuple):
            return (left.value in right.value) is not negative
    guard = compare_versions(ORDERS[type(op)], left, right) if type(op) in ORDERS else None
    if guard is not None:
        return guard
    if isinstance(op, (ast.Eq, ast.NotEq)) and isinstance(left, Literal) and isinstance(right, Literal):
        return (left.value == right.value) is not negative
    if left.of_te or right.of_te:
        return Unclear(text)
    if negative:  # `x != 1` becomes `not x == 1`, so that the two exclude each other
        return negate(Config(text.replace(f"{WORDS[type(op)]} ", f"{POSITIVE[type(op)]} ", 1)))
    return Config(text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def _text(node: ast.AST) -> str:
    if name := dotted(node):
        return name
    if isinstance(node, ast.Constant):
        return repr(node.value)
    if isinstance(node, ast.Call) and dotted(node.func):
        arguments = [*map(_text, node.args), *(f"{keyword.arg}={_text(keyword.value)}" for keyword in node.keywords)]
        return f"{dotted(node.func)}({', '.join(arguments)})"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return f"not {_text(node.operand)}"
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return f"{_text(node.left)} {WORDS[type(node.ops[0])]} {_text(node.comparators[0])}"
    if isinstance(node, ast.Subscript):
        return f"{_text(node.value)}[{_text(node.slice)}]"
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return f"({', '.join(map(_text, node.elts))})"
    return f"...{_digest(ast.dump(node))}"
