"""A TOML table becomes a dataclass, or an error has where, what, got, expected and fix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.folders import entries, roots
from matrix.ground.catalog.schema import Identifier, Pattern, VersionText, read_toml
from matrix.ground.catalog.versions import Range
from matrix.ground.errors import MatrixError


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
