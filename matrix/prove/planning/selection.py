"""`--select EXPR`: an expression that selects cases. An unknown name or version is an error.

An expression is evaluated in three values. None is the result where it depends on a name whose value isn't decided
yet, so that a search through the catalog leaves out a failure, a base or a release before it makes their cells.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Final

from packaging.specifiers import InvalidSpecifier
from packaging.version import InvalidVersion

from matrix.ground.cases.cells import package_sets, picked_cells
from matrix.ground.catalog.failure import Expectation, Level
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.stack import (
    ABSENT,
    DECIDED,
    MCORE,
    TE,
    WRITER,
    Cell,
    Stack,
    Value,
    component_named,
    components,
    short,
)
from matrix.ground.catalog.versions import Range, is_version
from matrix.ground.errors import MatrixError, closest
from matrix.ground.verdicts.planned import Planned
from matrix.prove.planning.night import REPORT, everything, stack_cases

Values = Callable[[str], "Value | None"]  # the value of a name or component; None where it isn't decided yet
Test = Callable[[Values], bool | None]  # None: it depends on such a name
Excluded = Callable[[Test], Sequence[str]]  # why the catalog excludes cases of a test

RANKS: Final = "ranks"  # a number, compared as a version is
NAMED: Final[dict[str, Callable[[Planned], str]]] = {
    "failure": lambda planned: planned.failure,
    "case": lambda planned: planned.case,
    "level": lambda planned: planned.level.value,
    "base": lambda planned: planned.cell.base,
    "cell": lambda planned: planned.cell.id,
    "expectation": lambda planned: planned.expectation.value,
    RANKS: lambda planned: str(planned.ranks),
}
TOKEN: Final = re.compile(
    r"\s{0,99}(?:(and|or|not|\(|\))(?![\w.-])|(\()|(\))|([\w-]{1,99})\s{0,99}(==|!=|>=|<=|>|<|=)\s{0,99}([^\s()]+))"
)
KEYWORD: Final = re.compile(r"\s{0,99}(?:(and|or|not)(?![^\s()])|(\()|(\))|([^\s()]+))")
REASONS: Final = 3  # for which nothing is selected, that are stated
DEEPEST: Final = 50  # levels of parentheses and "not"
KEY: Final = "key"  # of the text that keywords are parts of
KEYWORDS_FORM: Final = 'words joined by and, or, not and parentheses: "dcp and not tp2"'
FORM: Final = 'conditions joined by and, or, not and parentheses: "mcore==0.8.* and torch>=2.4 and not case==pp2"'


@dataclass(frozen=True)
class Vocabulary:
    """What an expression may name: names and components; and the values that cases have of each.

    `values_of` is empty for what has too many values to list them.
    """

    names: Collection[str]
    values_of: Callable[[str], Collection[str]]


def select(planned: Sequence[Planned], expression: str, excluded: Excluded = lambda test: ()) -> list[Planned]:
    """Return the cases that match `expression`. `excluded` returns why cases of a test are not among `planned`.

    Axes, packages and ranks take PEP 440 comparisons (mcore>=0.9, torch==2.4.*, numpy>=2, ranks>=4); names take == and
    != with shell patterns (base==torch-*, failure==save-breaks). Raises MatrixError for a bad expression, a name that
    no case has, and an expression that selects nothing.
    """
    test = compile_expression(expression, vocabulary_of(planned))
    return _matching(planned, test, expression, f"at least one of {len(planned)} cases", excluded)


def select_keywords(planned: Sequence[Planned], expression: str) -> list[Planned]:
    """Return the cases that match words as pytest's -k does: parts of cell, failure, case or level, in any case.

    "-" and "_" are the same. Raises MatrixError for a bad expression, and for one that selects nothing.
    """
    test = _parsed(expression, KEYWORD, _keyword, KEYWORDS_FORM)
    selected = [item for item in planned if test({KEY: item.key.lower().replace("-", "_")}.get)]
    if not selected:
        raise MatrixError(
            "the keywords select nothing",
            got=f"-k {expression}",
            expected=f"words that at least one of {len(planned)} cases has",
            fix="megatrix plan with the other options lists them",
        )
    return selected


def _keyword(word: str) -> Test:
    return lambda values: word.lower().replace("-", "_") in str(values(KEY))


def select_possible(catalog: Catalog, levels: Collection[Level], expression: str) -> list[Planned]:
    """Return the possible cases of a catalog, and those of its reports, that match `expression`; as `select` does."""
    test = compile_expression(expression, vocabulary_in(catalog, levels))
    everything = partial(possible_cases, without_exclusions(catalog), levels, test)
    return _matching(
        possible_cases(catalog, levels, test),
        test,
        expression,
        "at least one case",
        partial(exclusions, catalog, everything),
    )


def possible_cases(catalog: Catalog, levels: Collection[Level], test: Test) -> list[Planned]:
    """Return the possible cases of a catalog and those of its reports; some for which `test` is False are left out."""
    cases = {item.key: item for item in everything(catalog, levels, lambda values: test(values.get) is not False)}
    for item, _ in stack_cases(catalog, levels):
        cases.setdefault(item.key, item)
    return [*cases.values()]


def without_exclusions(catalog: Catalog) -> Catalog:
    """Return the catalog with the cells that it excludes, also by what megatron-core declares."""
    cores = tuple(replace(release, requires={}, requires_python=None) for release in catalog.megatron_core)
    return replace(catalog, exclusions=(), megatron_core=cores)


def exclusions(catalog: Catalog, everything: Callable[[], Sequence[Planned]], test: Test) -> list[str]:
    """Return why the catalog excludes cases of a test, the most frequent reason first; `everything` has them, too."""
    reasons = Counter(_exclusion(catalog, item.cell.stack) for item in everything() if test(values_of(item)))
    return [reason for reason, _ in reasons.most_common() if reason]


def _exclusion(catalog: Catalog, stack: Stack) -> str:
    """Return why a stack is excluded, with the versions that decide; "" if it is not."""
    reason = catalog.excluded(stack) or ""
    names = [name for rule in catalog.exclusions if rule.reason == reason for name in rule.when.bounds if name != MCORE]
    versions = ", ".join(f"{name} {stack.version(name)}" for name in names)
    return f"{reason}; the base has {versions}" if versions else reason


def _matching(
    planned: Sequence[Planned], test: Test, expression: str, expected: str, excluded: Excluded
) -> list[Planned]:
    selected = [item for item in planned if test(values_of(item))]
    if not selected:
        reasons = excluded(test)[:REASONS]
        raise MatrixError(
            "the selection selects nothing",
            got=expression + (f"; its cases are excluded: {'; '.join(reasons)}" if reasons else ""),
            expected=expected,
            fix="choose another base or release"
            if reasons
            else "megatrix plan --select 'failure==*' lists all; megatrix check CELL explains one cell",
        )
    return selected


def values_of(item: Planned) -> Values:
    """Return the value of each name and component of a case."""
    return lambda name: NAMED[name](item) if name in NAMED else item.cell.stack[name]


def vocabulary_of(planned: Sequence[Planned]) -> Vocabulary:
    """Return the names and values that these cases have."""
    return Vocabulary(
        _names(item.cell for item in planned), lambda name: {str(values_of(item)(name)) for item in planned}
    )


def vocabulary_in(catalog: Catalog, levels: Collection[Level]) -> Vocabulary:
    """Return the names and values that the possible cases of a catalog have; it makes few of their cells."""
    reader = catalog.readers[0].id if catalog.readers else next(iter(catalog.bases))
    failures = catalog.failures
    writer_of = {package: writer for writer, package in WRITER.items()}
    versions = {
        (package, version)
        for package in (MCORE, TE)
        for version in (
            *(release.version for release in catalog.releases(package)),
            *(build for failure in failures for build in failure.builds(package)),
        )
    }
    cells = [
        *(catalog.cell(base) for base in catalog.bases),
        *(catalog.cell(reader, {package: version, writer_of[package]: version}) for package, version in versions),
        *(catalog.cell(reader, values, values) for failure in failures for values in package_sets(failure)),
        *(cell for failure in failures for cell in picked_cells(catalog, failure)),
        *(catalog.cell_named(report.cell) for report in catalog.reports),
    ]
    of_names: dict[str, set[str]] = {
        "failure": {failure.id for failure in failures},
        "case": {case.name for failure in failures for case in failure.case} | {REPORT},
        "level": {level.value for level in levels},
        "base": {*catalog.bases},
        "expectation": {expectation.value for expectation in Expectation},
        RANKS: {str(case.ranks) for failure in failures for case in failure.case},
        "cell": set(),
    }
    return Vocabulary(
        _names(cells), lambda name: of_names[name] if name in NAMED else {str(cell.stack[name]) for cell in cells}
    )


def _names(cells: Iterable[Cell]) -> set[str]:
    return {*DECIDED, *components(), *(name for cell in cells for name in cell.stack)}


def compile_expression(expression: str, vocabulary: Vocabulary) -> Test:
    """Return the expression as a test. Raises MatrixError for a bad one, also where `vocabulary` lacks a name of it."""
    return _parsed(expression, TOKEN, lambda name, operator, value: _condition(name, operator, value, vocabulary), FORM)


def _parsed(expression: str, token: re.Pattern[str], condition: Callable[..., Test], form: str) -> Test:
    """Return the test of an expression: by Python's own grammar, with a name in place of each condition."""
    conditions, source = list[Test](), []
    for word in _words(expression, token, form):
        if isinstance(word, tuple):
            conditions.append(condition(*word))
            word = f"_{len(conditions) - 1}"
        source.append(word)
    try:
        return _test_of(ast.parse(" ".join(source), mode="eval").body, conditions)
    except (SyntaxError, RecursionError, MemoryError):
        text = "a condition, a parenthesis or a word between conditions is missing"
        raise MatrixError(f"the selection can't be read: {text}", got=expression, expected=form) from None


def _test_of(node: ast.expr, conditions: Sequence[Test], depth: int = 0) -> Test:
    """Return the test of a node. Raises SyntaxError for one that is no part of a selection."""
    if depth > DEEPEST:
        raise MatrixError("the selection is nested too deeply", expected=f"at most {DEEPEST} levels of ( and not")
    if isinstance(node, ast.Name):
        return conditions[int(node.id[1:])]
    if isinstance(node, ast.UnaryOp):
        inner = _test_of(node.operand, conditions, depth + 1)
        return lambda values: None if (result := inner(values)) is None else not result
    if isinstance(node, ast.BoolOp):
        terms = [_test_of(value, conditions, depth + 1) for value in node.values]
        return lambda values: _joined((term(values) for term in terms), isinstance(node.op, ast.Or))
    raise SyntaxError


def _joined(results: Iterable[bool | None], deciding: bool) -> bool | None:
    """Return Kleene's "or" of the results (`deciding` is True), or "and" (False): one such result decides."""
    undecided = False
    for result in results:
        if result is deciding:
            return deciding
        undecided = undecided or result is None
    return None if undecided else not deciding


def _words(expression: str, token: re.Pattern[str], form: str) -> list[str | tuple[str, ...]]:
    """Return the words: and, or, not and parentheses as text, a condition as the groups of `token` for it."""
    words: list[str | tuple[str, ...]] = []
    position = 0
    text = expression.rstrip()
    while position < len(text):
        word = token.match(text, position)
        if not word:
            raise MatrixError(
                "the selection can't be read", got=f"{text[:position]}>>>{text[position:]}", expected=form
            )
        words.append(word[1] or word[2] or word[3] or word.groups()[3:])
        position = word.end()
    return words


def _condition(name: str, operator: str, value: str, vocabulary: Vocabulary) -> Test:
    operator = "==" if operator == "=" else operator
    equal = operator == "=="
    if name in NAMED and name != RANKS:
        if operator not in ("==", "!="):
            raise MatrixError(f"{name} is a name", got=f"{name}{operator}{value}", expected="== or !=")
        return _named(name, value, equal, vocabulary)
    component = name if name == RANKS else component_named(name, vocabulary.names)
    if not component:
        component_names = {*NAMED, *map(short, vocabulary.names)}
        raise MatrixError("unknown component or name", got=name, fix=closest(name, component_names))
    if value == str(ABSENT) and operator in ("==", "!="):
        return lambda values: None if (version := values(component)) is None else (version is ABSENT) is equal
    try:
        bound = Range(f"{operator}{value}")
    except (InvalidSpecifier, InvalidVersion):
        expected = "2.4.* or 2.4.1" if equal and is_version(value.rstrip(".*")) else "a PEP 440 version"
        raise MatrixError("not a version", got=f"{name}{operator}{value}", expected=expected) from None
    versions = [version for version in vocabulary.values_of(component) if is_version(version)]
    if equal and not any(version in bound for version in versions):
        raise MatrixError(f"no case has this {name}", got=value, fix=closest(value, versions))

    def test(values: Values) -> bool | None:
        version = values(component)
        return None if version is None else isinstance(version, str) and version in bound

    return test


def _named(name: str, pattern: str, equal: bool, vocabulary: Vocabulary) -> Test:
    known_values = vocabulary.values_of(name)
    if known_values and not any(fnmatchcase(value, pattern) for value in known_values):
        raise MatrixError(f"no case has this {name}", got=pattern, fix=closest(pattern, known_values))
    parts = parts_of(pattern) if name == "cell" else {}

    def test(values: Values) -> bool | None:
        if (value := values(name)) is None:
            return None if may_have(parts, values) else not equal
        return fnmatchcase(str(value), pattern) is equal

    return test


def parts_of(cell: str) -> dict[str, Value]:
    """Return the values in a cell's id, or in the parts of a pattern that precede the first with a wildcard."""
    literal = [*itertools.takewhile(lambda part: not {*"*?["} & {*part}, cell.split("/"))]
    versions = dict((*part.partition("-")[::2],) for part in literal[1:])
    components = {component_named(name): ABSENT if text == str(ABSENT) else text for name, text in versions.items()}
    return {**components, **({"base": literal[0]} if literal else {})}


def may_have(expected: Mapping[str, Value], values: Values, differing: int = 0) -> bool:
    """Return whether a case with these values may have the expected ones, except for as many as may be `differing`."""
    return sum(values(name) not in (None, value) for name, value in expected.items()) <= differing
