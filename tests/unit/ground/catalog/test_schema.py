"""A TOML table becomes a dataclass, or an error has where, what, got, expected and fix."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.folders import entries, roots
from matrix.ground.catalog.schema import Identifier, Pattern, VersionText, ambiguity, is_plain, literals, read_toml
from matrix.ground.catalog.versions import Range
from matrix.ground.errors import MatrixError
from tests.profiles import tries
from tests.unit.catalogs import real


@dataclass(frozen=True)
class Inner:
    name: Identifier


@dataclass(frozen=True)
class Table:
    """A table with every kind of key in the catalog's tables."""

    name: Identifier
    version: VersionText | None = None
    bound: Range | None = None
    pattern: Pattern | None = None
    level: Level = Level.CPU
    levels: tuple[Level, ...] = ()
    count: int = 0
    yes: bool = False
    inner: Inner | None = None
    inners: tuple[Inner, ...] = ()
    bounds: Mapping[str, Range] = field(default_factory=dict)
    uploads: tuple[str, ...] | str | None = None


def test_a_table_with_every_key_is_read() -> None:
    given = {
        "name": "save-breaks",
        "version": "1.8.0+37280ec",
        "bound": ">=0.6,<0.9",
        "pattern": r"takes \d+",
        "level": "gpu",
        "levels": ["contract", "cpu"],
        "count": 2,
        "yes": True,
        "inner": {"name": "one"},
        "inners": [{"name": "two"}],
        "bounds": {"numpy": "<2"},
        "uploads": ["2024-08-13"],
    }
    expected = Table(
        name=Identifier("save-breaks"),
        version=VersionText("1.8.0+37280ec"),
        bound=Range(">=0.6,<0.9"),
        pattern=Pattern(r"takes \d+"),
        level=Level.GPU,
        levels=(Level.CONTRACT, Level.CPU),
        count=2,
        yes=True,
        inner=Inner(Identifier("one")),
        inners=(Inner(Identifier("two")),),
        bounds={"numpy": Range("<2")},
        uploads=("2024-08-13",),
    )
    assert expected == decode(Table, given, "facts.toml: table")


def test_missing_keys_have_their_defaults() -> None:
    assert Table(Identifier("one"), uploads="2024-08-13") == decode(
        Table, {"name": "one", "uploads": "2024-08-13"}, "x"
    )


@pytest.mark.parametrize(
    ("value", "where", "what", "got", "hint"),
    [
        ({}, "f.toml", "a key is missing", "an empty table", "add name = ..."),
        ({"nam": "x"}, "f.toml.nam", "unknown key", "nam", "did you mean name?"),
        ({"name": 3}, "f.toml.name", "a value of the wrong type", "3", "text in quotes"),
        ({"name": "two words"}, "f.toml.name", "not an id", "'two words'", "letters, digits and . _ + -"),
        ({"name": "x", "version": "new"}, "f.toml.version", "not a version", "'new'", "a PEP 440 version"),
        ({"name": "x", "bound": "0.8"}, "f.toml.bound", "not a version range", "Invalid specifier", '">=0.6,<0.9"'),
        ({"name": "x", "bound": "~=0.8"}, "f.toml.bound", "not a version range", "~=0.8", "put an operator before"),
        ({"name": "x", "pattern": "("}, "f.toml.pattern", "not a regular expression", "'('", "single quotes"),
        ({"name": "x", "level": "cpux"}, "f.toml.level", "unknown value", "'cpux'", "contract or cpu or gpu"),
        ({"name": "x", "levels": "cpu"}, "f.toml.levels", "not a list", "'cpu'", "[...]"),
        ({"name": "x", "levels": ["cpu", []]}, "f.toml.levels[1]", "unknown value", "[]", "contract or cpu or gpu"),
        ({"name": "x", "count": True}, "f.toml.count", "a value of the wrong type", "True", "int"),
        ({"name": "x", "count": "2"}, "f.toml.count", "a value of the wrong type", "'2'", "int"),
        ({"name": "x", "yes": 1}, "f.toml.yes", "a value of the wrong type", "1", "true or false"),
        ({"name": "x", "inner": []}, "f.toml.inner", "not a table", "[]", "[Inner] keys"),
        ({"name": "x", "inners": [{"name": 1}]}, "f.toml.inners[0].name", "a value of the wrong type", "1", "text"),
        ({"name": "x", "bounds": ["<2"]}, "f.toml.bounds", "not a table", "['<2']", "{ name = ... }"),
        ({"name": "x", "bounds": {"numpy": 2}}, "f.toml.bounds.numpy", "a value of the wrong type", "2", "text"),
        ([], "f.toml", "not a table", "[]", "[Table] keys"),
    ],
)
def test_a_mismatch_raises_with_place_and_hint(value: Any, where: str, what: str, got: str, hint: str) -> None:
    with pytest.raises(MatrixError) as caught:
        decode(Table, value, "f.toml")
    error = caught.value
    assert (where, True) == (error.where, error.what.startswith(what))
    assert got in str(error.got)
    assert hint in f"{error.expected} {error.fix}"


def test_a_long_value_is_truncated_in_the_error() -> None:
    with pytest.raises(MatrixError) as caught:
        decode(int, "x" * 500, "f.toml: count")
    assert len(str(caught.value.got)) == 80


def test_read_toml_reads_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('name = "x"\n')
    assert read_toml(tmp_path / "a.toml") == {"name": "x"}


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (text, "the file is not TOML")
        for text in (b"name = [", b'name = "\xff"', b"ranks = " + b"9" * 5_000, b"a = " + b"[" * 20_000)
    ],
    ids=["cut", "not UTF-8", "5,000 digits", "nested"],
)
def test_the_error_of_invalid_toml_names_the_file(tmp_path: Path, content: bytes, what: str) -> None:
    (tmp_path / "a.toml").write_bytes(content)
    with pytest.raises(MatrixError) as caught:
        read_toml(tmp_path / "a.toml")
    assert (what, str(tmp_path / "a.toml")) == (caught.value.what, caught.value.where)


def test_the_error_of_a_missing_file_names_it(tmp_path: Path) -> None:
    with pytest.raises(MatrixError) as caught:
        read_toml(tmp_path / "a.toml")
    assert (caught.value.what, caught.value.got) == ("the file can't be read", "No such file or directory")


def test_entries_are_read_alike_by_both_readers() -> None:
    """Python's own reads them in cells without tomli; tomli also reads newer TOML."""
    tomllib = pytest.importorskip("tomllib")
    paths = [path for root in roots() for path in entries(root)]
    assert paths
    assert all(tomllib.loads(path.read_text("utf-8")) == read_toml(path) for path in paths)


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


@tries(40)
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
    st.sampled_from(
        ["a", ".*", r"\.", r"\d+", "[^a.]", "[^;]*", "|", "(?:", "(?!", "(", ")", "^", "$", r"\b", "?", "(?m)"]
    ),
    max_size=7,
).map("".join)


@tries(2000)
@given(FORMS)
def test_plain_pattern_compiles_and_is_unambiguous(pattern: str) -> None:
    if is_plain(pattern):
        re.compile(pattern)
        assert ambiguity(pattern) == ""


def test_most_patterns_of_the_catalog_are_plain() -> None:
    assert sum(map(is_plain, OF_CATALOG)) > 0.8 * len(OF_CATALOG)
