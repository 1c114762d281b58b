"""The text that every match of a pattern contains, and patterns that may take exponential time."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.patterns import ambiguity, is_plain, literals
from matrix.ground.catalog.schema import Pattern
from matrix.ground.errors import MatrixError
from tests.unit.catalogs import real

OF_CATALOG = sorted(
    {
        pattern
        for failure in real().failures
        for signature in failure.signature
        for pattern in (signature.message, signature.log)
        if pattern
    }
)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"initialize_ub\(\) got", ("initialize_ub() got",)),
        (r"a file \d+ bytes", ("a file ", " bytes")),
        (r"\bat\b end$", ("at end",)),
        (r"(one) (?:two)", ("one two",)),
        (r"(one|two) three", (" three",)),
        (r"one\ntwo", ("one", "two")),
        (r"ab?c", ("a", "c")),
        (r"(?:ab){2}c", ("ab", "c")),
        (r"(?:ab)*", ()),
        (r"^(item not in md)?$", ()),
        (r"(?i)one", ()),
        (r"(?i:one) two", (" two",)),
        (r"(?<!x)one(?=two)", ("one",)),
        (r"[.]one", (".one",)),
        (r"\d+", ()),
    ],
)
def test_literals_are_those_of_every_match(pattern: str, expected: tuple[str, ...]) -> None:
    assert literals(pattern) == expected


PATTERNS = st.recursive(
    st.sampled_from(["a", "bc", r"\d", ".", "[xy]", r"\b", "(?:p|qr)"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.tuples(inner, st.sampled_from(["?", "*", "+", "{2}", "{1,3}"])).map(lambda two: f"(?:{two[0]}){two[1]}"),
        st.tuples(inner, inner).map(lambda two: f"({two[0]}|{two[1]})"),
    ),
    max_leaves=6,
)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_every_match_contains_the_literals(data: st.DataObject) -> None:
    pattern = data.draw(PATTERNS)
    found = re.search(pattern, data.draw(st.from_regex(pattern)))
    assert found
    place = 0
    for literal in literals(pattern):
        place = found[0].find(literal, place) + len(literal)
        assert place >= len(literal)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$", "(a*)*b", "(a?){30}a{30}", "(?:a+){9}b", "((a+)b?)*c", r"(\w+\s?)*:", "(a|a)+$", "(a|ab)*c",
        "(a|)+b", "(?:(?:x*)y)+", "(a+?)+$", "(?=(a+)+$)", "(?!(a+)+b)", r"(a)(\1|b)+", "(?i:(ab|AC)+$)",
        r"(\d|[0-5]b)+x", r"(?:a|.)*b",
    ],
)  # fmt: skip
def test_pattern_of_exponential_time_is_refused(pattern: str) -> None:
    assert ambiguity(pattern)
    with pytest.raises(MatrixError, match="may take exponential time"):
        decode(Pattern, pattern, "here")


@pytest.mark.parametrize(
    "pattern",
    [
        "a+b+",
        r"(?s)one.*two.*three",
        "(?:foo|bar)+",
        "(a{2}b)*",
        "(a+|b)c",
        "(?:x[ab])*y",
        "a{1,3}b?",
        "([a-f]|x)+",
        "",
    ],
)
def test_pattern_of_polynomial_time_is_accepted(pattern: str) -> None:
    assert ambiguity(pattern) == ""


@pytest.mark.parametrize("pattern", OF_CATALOG)
def test_patterns_of_the_catalog_are_accepted(pattern: str) -> None:
    assert ambiguity(pattern) == ""


VARIABLE = st.sampled_from(["a+", "a*", "a?", "a{1,3}", "a+?", r"\w*", ".*"])
WRAPPED = st.sampled_from(["{}", "({})", "(?:{})", "x{}", "{}y", "(x|{})", "(?={})z", "(?P<n>{})"])


@given(VARIABLE, st.lists(WRAPPED, max_size=3), st.sampled_from(["+", "*", "{2,}", "{30}", "+?"]))
def test_no_group_hides_a_nested_repeat(inner: str, wrappers: list[str], outer: str) -> None:
    for place, wrapper in enumerate(wrappers):
        inner = wrapper.replace("<n>", f"<n{place}>").format(inner)
    assert ambiguity(f"(?:{inner}){outer}")


FORMS = st.text("ab ()[]{}^$.*+?|\\\\dwsbnxN1,:!=<P>ms#-", max_size=8) | st.lists(
    st.sampled_from(["a", ".*", r"\.", r"\d+", "[^a.]", "|", "(?:", "(?!", "(", ")", "^", "$", r"\b", "?", "(?m)"]),
    max_size=7,
).map("".join)


@settings(max_examples=2000)
@given(FORMS)
def test_plain_pattern_compiles_and_is_unambiguous(pattern: str) -> None:
    if is_plain(pattern):
        re.compile(pattern)
        assert ambiguity(pattern) == ""


def test_most_patterns_of_the_catalog_are_plain() -> None:
    assert sum(map(is_plain, OF_CATALOG)) > 0.8 * len(OF_CATALOG)
