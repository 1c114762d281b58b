"""The time of each regular expression of the project grows with the text at most as stated."""

from __future__ import annotations

import pytest

from tests.growth import SEARCH, Expression, expressions, growth, measured

# Linear for a reason that the automaton does not see: how each begins, and the reason.
LINEAR = {
    r"(?<![\w.])(?:(?![A-Za-z])": "a name starts at its first letter alone, so a run of word characters has one start",
    "^Fatal Python error": "what follows ends at the next start",
    r'"((?:[^"\\]|\\.)*)': "it matches at each quote: at the end of the text at the latest",
    "(?s)Using non-blocking mode": "what follows ends at the next start",
    "()-----BEGIN [A-Z ]{0,40}PRIVATE KEY": "at most 16,384 characters, the longest key, after 27 that no key contains",
}


@pytest.mark.parametrize(
    ("pattern", "method", "degree"),
    [
        ("a*b", "match", 1),
        ("a*b", "search", 2),
        ("^a*b", "search", 1),
        (r"(?m)^\s*b", "search", 2),
        ("(?m)^ *b", "search", 1),
        (r"\w+", "search", 1),
        (r"(?<!\w)\w+:", "search", 1),
        (r"\b\w+:", "search", 1),
        ("a*a*b", "match", 2),
        ("a*a*a*b", "match", 3),
        ("a+(?:x|a)*b", "match", 2),
        ("(?:a|b)*c", "match", 1),
        ("a{0,40}b", "search", 1),
        ("a{0,5000}b", "search", 2),
        ("(?:a(?=a*b))*c", "match", 2),
        ("a*", "fullmatch", 1),
        ("(?:a*a)*", "match", 1),  # it always matches
        ("(?:a*a)*b", "match", None),
        ("(?:a+)+b", "search", None),
        ("(?:a|aa)+b", "match", None),
        (r"(?i:A)*a*b", "match", 2),
        (r"\S+(?:\s*,\s*\S+)*", "search", 2),  # 1: between two matches it looks ahead
        (r"[\w.-]+(?:-[\w.]+)+-py", "search", 3),  # of issue M3
    ],
)
def test_choices_of_an_expression_are_counted(pattern: str, method: str, degree: int | None) -> None:
    assert growth(pattern, 0, method)[0] == degree


def test_strings_of_a_cubic_expression_show_it() -> None:
    """The time at 4n is some 64 times that at n; 16 times would be quadratic."""
    degree, strings = growth("a*a*b", 0, SEARCH)
    assert degree == 3
    assert measured(Expression("", "a*a*b", 0, SEARCH), strings, 100)[0] > 25


def test_every_expression_is_linear() -> None:
    found = expressions()
    others = {one.pattern for one in found if growth(one.pattern, one.flags, one.method)[0] != 1}
    assert len(found) > 500
    assert [pattern for pattern in others if not pattern.startswith(tuple(LINEAR))] == []
    assert [start for start in LINEAR if not any(pattern.startswith(start) for pattern in others)] == []


@pytest.mark.parametrize("start", LINEAR)
def test_expression_with_a_reason_is_measured(start: str) -> None:
    """The time at 4n is some 4 times that at n; 16 times would be quadratic."""
    (one,) = (one for one in expressions() if one.pattern.startswith(start))
    _, strings = growth(one.pattern, one.flags, one.method)
    assert measured(one, strings, 10_000)[0] < 10
