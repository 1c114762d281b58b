"""Versions compare in PEP 440's order, including local and pre-release parts."""

from __future__ import annotations

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import InvalidSpecifier
from packaging.version import InvalidVersion, Version

from matrix.ground.catalog.codec import MalformedError, decode, encode
from matrix.ground.catalog.stack import ABSENT
from matrix.ground.catalog.versions import (
    Range,
    ReleaseBoundary,
    format_ranges,
    inside,
    is_version,
    minor,
    parse,
    position,
)

RELEASES = st.lists(st.integers(0, 12), min_size=1, max_size=3).map(lambda parts: ".".join(map(str, parts)))
SUFFIXES = st.sampled_from(["", "a0", "b2", "rc1", ".post1", ".dev0", "rc1.dev3", ".post2.dev1"])
LOCALS = st.sampled_from(["", "+37280ec", "+e79d915", "+tree.0a1b2c3", "+cu121", "+1"])
PUBLIC = st.builds("{}{}".format, RELEASES, SUFFIXES)  # ordered clauses take no local version
VERSIONS = st.builds("{}{}".format, PUBLIC, LOCALS)
ORDERINGS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


@given(VERSIONS, st.sampled_from(sorted(ORDERINGS)), PUBLIC)
def test_ordered_clauses_use_packaging_s_total_order(version: str, sign: str, bound: str) -> None:
    assert ORDERINGS[sign](Version(version), Version(bound)) == (version in Range(f"{sign}{bound}"))


@given(VERSIONS, PUBLIC)
def test_exactly_one_of_less_equal_greater_holds(version: str, bound: str) -> None:
    """No version falls between the clauses, as local and pre-release ones do between a SpecifierSet's."""
    below, above = version in Range(f"<{bound}"), version in Range(f">{bound}")
    assert [below, Version(version) == Version(bound), above].count(True) == 1


@given(VERSIONS, PUBLIC)
def test_not_equal_negates_equal(version: str, bound: str) -> None:
    assert (version in Range(f"=={bound}")) is not (version in Range(f"!={bound}"))


@given(VERSIONS, PUBLIC, PUBLIC)
def test_every_clause_of_a_range_must_hold(version: str, lower: str, upper: str) -> None:
    both = version in Range(f">={lower}") and version in Range(f"<{upper}")
    assert both == (version in Range(f">={lower}, <{upper}"))


@pytest.mark.parametrize(
    ("version", "range", "contained"),
    [
        ("1.8.0+37280ec", ">1.8.0", True),  # the guard of Megatron-LM#1041, on the build of NGC 24.07
        ("1.8.0", ">1.8.0", False),
        ("1.9.0+e79d915", ">1.9.0", True),
        ("1.9.0+e79d915", "==1.9.0", True),
        ("1.9.0+e79d915", "==1.9.0+37280ec", False),
        ("1.9.0.dev0+f9dd37f", ">=1.9.0", False),
        ("1.9.0.dev0+f9dd37f", ">=1.9.0.dev0", True),
        ("2.4.0a0+3bcc3cddb5", "<2.4.0", True),
        ("2.4.0a0+3bcc3cddb5", "==2.4.*", True),
        ("2.4.0a0+3bcc3cddb5", ">=2.4.0a0", True),
        ("0.8.0.post1", ">0.8.0", True),
        ("0.8.0rc0", "<0.8.0", True),
        ("0.8.0rc0", ">=0.8.0.dev0", True),
        ("1.9", "==1.9.0", True),
        ("1.10", ">1.9", True),
    ],
)
def test_versions_of_known_reports(version: str, range: str, contained: bool) -> None:
    assert contained == (version in Range(range))


@pytest.mark.parametrize(
    "text", ["", "0.8", ">=", ">=0.8,", ">=one", "~=0.8", "===0.8", "=>0.8", ">=0.8 <0.9", "==" + "9" * 5_000]
)
def test_an_invalid_range_raises_at_construction(text: str) -> None:
    with pytest.raises(InvalidSpecifier):
        Range(text)


def test_minor_drops_patch_pre_release_and_local_part() -> None:
    texts = ["2.4.1", "2.4.0a0+3bcc3cddb5", "1.10", "2", "1.9.0.dev0+f9dd37f"]
    assert list(map(minor, texts)) == ["2.4", "2.4", "1.10", "2.0", "1.9"]


@pytest.mark.parametrize(
    ("text", "good"), [("1.8.0+37280ec", True), ("470.161.03", True), ("none", False), ("", False)]
)
def test_is_version_accepts_pep_440_only(text: str, good: bool) -> None:
    assert good == is_version(text)


def test_parse_raises_for_an_invalid_version() -> None:
    with pytest.raises(InvalidVersion):
        parse("latest")


@pytest.mark.parametrize("version", ["0", "0.dev1", "0.0.1a0", "0.1.dev0"])
def test_none_sorts_before_every_version(version: str) -> None:
    assert position(ABSENT) < position(version) == parse(version)


def test_range_is_a_text_in_plain_data() -> None:
    assert decode(Range, ">=0.6,<0.9") == Range(">=0.6,<0.9")
    assert encode(Range(">=0.6, <0.9")) == ">=0.6, <0.9"


@pytest.mark.parametrize(
    ("value", "got"), [("~=0.8", "~=0.8: write it with <, <=, >, >=, == or !="), ("0.8", "Invalid specifier: '0.8'")]
)
def test_text_that_is_no_range_is_refused(value: str, got: str) -> None:
    with pytest.raises(MalformedError) as caught:
        decode(Range, value, "entry")
    assert (caught.value.where, str(caught.value.got)) == ("entry", got)


RECORDED = ["1.0", "1.1", "1.2", "1.3", "1.4"]


@pytest.mark.parametrize(
    ("some", "expected"),
    [
        ([], ""),
        (["1.0"], "1.0"),
        (["1.3"], "1.3"),
        (["1.1", "1.0"], "1.0 .. 1.1"),
        (["1.0", "1.2", "1.4"], "1.0, 1.2, 1.4"),
        (["1.1", "1.2", "1.3"], "1.1 .. 1.3"),
        (["1.0", "1.1", "1.3", "1.4", "1.4"], "1.0 .. 1.1, 1.3 .. 1.4"),
        (["2.0", "1.0", "main", "0.9", "branch"], "1.0, branch, main, 0.9, 2.0"),  # others follow: texts, then versions
    ],
)
def test_spans_of_recorded_versions(some: list[str], expected: str) -> None:
    assert format_ranges(some, RECORDED) == expected


@pytest.mark.parametrize(
    "text",
    ["<2.4", "<=2.4.0", ">2.4.0", ">=2.4.0a0", ">=2,<2.4", "==2.4.*", "!=2.4.0", ">=2.4.0,!=2.5.1", "<1", ">3,<2"],
)
def test_versions_inside_are_those_contained(text: str) -> None:
    """Builds, pre-releases, both ends, and versions of two spellings."""
    ordered = ("1.13.1", "2.3.1", "2.4.0a0+3bcc3cddb5", "2.4", "2.4.0", "2.4.0+cu121", "2.4.1", "2.5.1", "10.0")
    assert inside(text, ordered) == {version for version in ordered if version in Range(text)}


@pytest.mark.parametrize(
    ("boundary", "part", "expected"),
    [
        (ReleaseBoundary("0.12.0", "0.16.0", "0.19.0"), "before", ">=0.12.0,<0.16.0.dev0"),
        (ReleaseBoundary("0.12.0", "0.16.0", "0.19.0"), "broken", ">=0.16.0,<0.19.0.dev0"),
        (ReleaseBoundary("0.12.0", "0.16.0", "0.19.0"), "fixed", ">=0.19.0"),
        (ReleaseBoundary("0.12.0", "0.16.0", "0.19.0"), "any", ">=0.12.0"),
        (ReleaseBoundary("", "0.16.0", ""), "before", "<0.16.0.dev0"),
        (ReleaseBoundary("", "0.16.0", ""), "broken", ">=0.16.0"),
        (ReleaseBoundary("", "0.16.0", ""), "any", ">=0.16.0"),
        (ReleaseBoundary("", "", "0.19.0"), "broken", "<0.19.0.dev0"),
    ],
)
def test_part_of_a_boundary_is_a_range(boundary: ReleaseBoundary, part: str, expected: str) -> None:
    assert boundary.range_of(part) == expected
    assert Range(expected).text == expected


@pytest.mark.parametrize(
    ("boundary", "part", "missing"),
    [
        (ReleaseBoundary("0.12.0", "", "0.19.0"), "before", "breaks"),
        (ReleaseBoundary("", "0.16.0", ""), "fixed", "fixed"),
        (ReleaseBoundary("", "", ""), "broken", "breaks"),
        (ReleaseBoundary("", "", "0.19.0"), "any", "breaks"),
    ],
)
def test_boundary_without_the_release_is_refused(boundary: ReleaseBoundary, part: str, missing: str) -> None:
    with pytest.raises(MalformedError, match=f"no release {missing}"):
        boundary.range_of(part, "failure.toml: mcore")


PATCHES = ("0.12.0", "0.14.0", "0.15.0", "0.15.3", "0.16.0", "0.16.1", "0.17.0", "0.18.2", "0.19.0", "0.19.2")


@pytest.mark.parametrize(
    ("boundary", "parts", "sides"),
    [
        (ReleaseBoundary("0.12.0", "0.15.0", "0.16.0"), {"before", "broken", "fixed"}, ["0.14.0", "0.15.3", "0.16.1"]),
        (ReleaseBoundary("0.12.0", "0.15.0", "0.19.0"), {"broken", "fixed"}, ["0.18.2", "0.19.2"]),
        (ReleaseBoundary("0.12.0", "0.15.0", "0.19.0"), {"before", "broken"}, ["0.14.0", "0.15.3"]),
        (ReleaseBoundary(fixed="0.17.0"), {"broken", "fixed", "any"}, ["0.16.1", "0.17.0"]),
        (ReleaseBoundary(breaks="0.17.0"), {"before", ">=0.17"}, ["0.16.1", "0.17.0"]),
        (ReleaseBoundary(breaks="0.17.0"), {"broken", "None"}, []),
    ],
)
def test_sides_are_next_to_the_changes(boundary: ReleaseBoundary, parts: set[str], sides: list[str]) -> None:
    assert boundary.sides(parts, PATCHES) == sides


def test_boundary_in_the_wrong_order_is_refused() -> None:
    with pytest.raises(MalformedError, match="ends before it begins"):
        ReleaseBoundary(breaks="0.16.0", fixed="0.12.0")
