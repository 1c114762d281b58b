"""The time of each regular expression of the project grows with the text at most as stated."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.growth import SEARCH, Expression, expressions, growth, measured

# Expressions that a search may try at each start of a repeat. No text without a bound reaches them: names, lines, what
# was parsed within 10 s of processor. The number must not grow.
QUADRATIC = 74


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
        ("a{0,4000}b", "search", 2),
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


def test_no_expression_is_more_than_quadratic() -> None:
    found = expressions()
    degrees = {one: growth(one.pattern, one.flags, one.method)[0] for one in found}
    assert len(found) > 500
    assert [one for one, degree in degrees.items() if degree not in (1, 2)] == []
    assert Counter(degrees.values())[2] <= QUADRATIC
