"""A TOML table becomes a dataclass, or an error says where, what, got, expected and how to fix it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from matrix.catalog.failure import Level
from matrix.catalog.schema import Identifier, Pattern, VersionText, build, convert, read_toml
from matrix.catalog.versions import Range
from matrix.errors import MatrixError


@dataclass(frozen=True)
class Inner:
    name: Identifier


@dataclass(frozen=True)
class Table:
    """Every kind of key that the catalog's tables have."""

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
    assert expected == build(Table, given, "facts.toml: table")


def test_keys_that_are_left_out_take_their_defaults() -> None:
    assert Table(Identifier("one"), uploads="2024-08-13") == build(Table, {"name": "one", "uploads": "2024-08-13"}, "x")


@pytest.mark.parametrize(
    ("value", "where", "what", "got", "hint"),
    [
        ({}, "f.toml", "a key is missing", "an empty table", "add name = ..."),
        ({"nam": "x"}, "f.toml.nam", "unknown key", "nam", "did you mean name?"),
        ({"name": 3}, "f.toml.name", "a value of another type is needed here", "3", "text in quotes"),
        ({"name": "two words"}, "f.toml.name", "not an id", "'two words'", "letters, digits and . _ + -"),
        ({"name": "x", "version": "new"}, "f.toml.version", "not a version", "'new'", "a PEP 440 version"),
        ({"name": "x", "bound": "0.8"}, "f.toml.bound", "not a version range", "Invalid specifier", '">=0.6,<0.9"'),
        ({"name": "x", "bound": "~=0.8"}, "f.toml.bound", "not a version range", "~=0.8", "put an operator before"),
        ({"name": "x", "pattern": "("}, "f.toml.pattern", "not a regular expression", "'('", "single quotes"),
        ({"name": "x", "level": "cpux"}, "f.toml.level", "unknown value", "'cpux'", "contract or cpu or gpu"),
        ({"name": "x", "levels": "cpu"}, "f.toml.levels", "a list is needed here", "'cpu'", "[...]"),
        ({"name": "x", "levels": ["cpu", []]}, "f.toml.levels[1]", "unknown value", "[]", "contract or cpu or gpu"),
        ({"name": "x", "count": True}, "f.toml.count", "a value of another type is needed here", "True", "int"),
        ({"name": "x", "count": "2"}, "f.toml.count", "a value of another type is needed here", "'2'", "int"),
        ({"name": "x", "yes": 1}, "f.toml.yes", "a value of another type is needed here", "1", "true or false"),
        ({"name": "x", "inner": []}, "f.toml.inner", "a table is needed here", "[]", "[Inner] keys"),
        ({"name": "x", "inners": [{"name": 1}]}, "f.toml.inners[0].name", "a value of another type", "1", "text"),
        ({"name": "x", "bounds": ["<2"]}, "f.toml.bounds", "a table is needed here", "['<2']", "{ name = ... }"),
        ({"name": "x", "bounds": {"numpy": 2}}, "f.toml.bounds.numpy", "a value of another type", "2", "text"),
        ([], "f.toml", "a table is needed here", "[]", "[Table] keys"),
    ],
)
def test_what_does_not_fit_is_said(value: Any, where: str, what: str, got: str, hint: str) -> None:
    with pytest.raises(MatrixError) as caught:
        build(Table, value, "f.toml")
    error = caught.value
    assert (where, True) == (error.where, error.what.startswith(what))
    assert got in str(error.got)
    assert hint in f"{error.expected} {error.fix}"


def test_a_long_value_is_shown_cut() -> None:
    with pytest.raises(MatrixError) as caught:
        convert(int, "x" * 500, "f.toml: count")
    assert len(str(caught.value.got)) == 80


def test_a_file_of_toml_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('name = "x"\n')
    assert read_toml(tmp_path / "a.toml") == {"name": "x"}


@pytest.mark.parametrize(
    ("content", "what"), [(b"name = [", "the file is not TOML"), (b'name = "\xff"', "the file is not TOML")]
)
def test_a_file_that_is_not_toml_is_named(tmp_path: Path, content: bytes, what: str) -> None:
    (tmp_path / "a.toml").write_bytes(content)
    with pytest.raises(MatrixError) as caught:
        read_toml(tmp_path / "a.toml")
    assert (what, str(tmp_path / "a.toml")) == (caught.value.what, caught.value.where)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(MatrixError) as caught:
        read_toml(tmp_path / "a.toml")
    assert (caught.value.what, caught.value.got) == ("the file can't be read", "No such file or directory")
