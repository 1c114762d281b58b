"""Plain data becomes a dataclass whose type hints hold, or an error has the path of the value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.catalog.codec import (
    LARGEST,
    MalformedError,
    decode,
    decode_json,
    encode,
    fields_from_plain,
    fields_to_plain,
)


class Colour(str, Enum):
    RED = "red"
    GREEN = "green"


@dataclass(frozen=True)
class Word:
    """A value with a plain form of its own."""

    text: str
    loud: bool = False

    def to_plain(self) -> str:
        return self.text.upper() if self.loud else self.text

    @classmethod
    def from_plain(cls, value: Any) -> Word:
        if not isinstance(value, str):
            raise TypeError(type(value).__name__)
        return fields_from_plain(cls, {"text": value.lower(), "loud": value.isupper()})


@dataclass(frozen=True)
class Inner:
    number: int
    word: Word | None = None

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("a number below 0")


@dataclass(frozen=True)
class Value:
    """Every kind of field."""

    text: str
    ratio: float = 0.5
    yes: bool = False
    colour: Colour = Colour.RED
    inner: Inner | None = None
    inners: tuple[Inner, ...] = ()
    pair: tuple[str, int] = ("a", 1)
    counts: Mapping[str, int] = field(default_factory=dict)
    mixed: str | bool | tuple[str, ...] | Inner | float | None = None
    anything: Any = None
    folder: Path = Path()
    computed: str = field(default="", metadata={"plain": False})


VALUE = Value(
    text="a",
    colour=Colour.GREEN,
    inner=Inner(1, Word("b", loud=True)),
    inners=(Inner(2), Inner(3)),
    pair=("b", 2),
    counts={"x": 1},
    mixed=("c",),
    anything={"y": [1, None]},
    folder=Path("/tmp"),
)


def test_values_survive_the_round_trip_through_json() -> None:
    assert decode_json(Value, json.dumps(encode(VALUE))) == VALUE


@pytest.mark.parametrize("mixed", ["text", True, ("a", "b"), Inner(1), 0.5, 2, None], ids=repr)
def test_union_members_are_told_apart_by_plain_type(mixed: Any) -> None:  # codespell:ignore
    assert decode(Value, encode(Value("a", mixed=mixed))) == Value("a", mixed=mixed)


def test_missing_fields_have_their_defaults() -> None:
    assert decode(Value, {"text": "a"}) == Value("a")


def test_own_form_is_not_used_for_its_fields() -> None:
    assert (encode(Word("a", loud=True)), fields_to_plain(Word("a", loud=True))) == ("A", {"text": "a", "loud": True})


@pytest.mark.parametrize(
    ("change", "where", "what", "got", "expected"),
    [
        ({"text": 1}, "f.text", "a value of the wrong type", "1", "text in quotes"),
        ({"ratio": float("nan")}, "f.ratio", "a value of the wrong type", "nan", "float"),
        ({"ratio": float("inf")}, "f.ratio", "a value of the wrong type", "inf", "float"),
        ({"ratio": LARGEST}, "f.ratio", "a value of the wrong type", str(LARGEST), "float"),
        ({"ratio": True}, "f.ratio", "a value of the wrong type", "True", "float"),
        ({"yes": 1}, "f.yes", "a value of the wrong type", "1", "true or false"),
        ({"yes": None}, "f.yes", "a value of the wrong type", "None", "true or false"),
        ({"colour": "blue"}, "f.colour", "unknown value", "'blue'", "red or green"),
        ({"colour": ["red"]}, "f.colour", "unknown value", "['red']", "red or green"),
        ({"inner": {"number": True}}, "f.inner.number", "a value of the wrong type", "True", "int"),
        ({"inner": {"number": 1.0}}, "f.inner.number", "a value of the wrong type", "1.0", "int"),
        ({"inner": {"number": -1}}, "f.inner", "not a valid value", "a number below 0", None),
        ({"inner": {}}, "f.inner", "a key is missing", "an empty table", "number"),
        ({"inner": {"number": 1, "word": 1}}, "f.inner.word", "not a valid value", "int", None),
        ({"inners": [{"number": 1}, {"nummer": 2}]}, "f.inners[1].nummer", "unknown key", "nummer", "a key"),
        ({"inners": "ab"}, "f.inners", "not a list", "'ab'", "[...]"),
        ({"inners": {"number": 1}}, "f.inners", "not a list", "{'number': 1}", "[...]"),
        ({"pair": ["a"]}, "f.pair", "a list of another length", "['a']", "2 values"),
        ({"pair": ["a", "b"]}, "f.pair[1]", "a value of the wrong type", "'b'", "int"),
        ({"counts": {"x": None}}, "f.counts.x", "a value of the wrong type", "None", "int"),
        ({"counts": ["x"]}, "f.counts", "not a table", "['x']", "{ name = ... }"),
        ({"folder": 1}, "f.folder", "a value of the wrong type", "1", "text in quotes"),
        ({"computed": "a"}, "f.computed", "unknown key", "computed", "a key"),
    ],
)
def test_malformed_data_raises_with_its_path(
    change: dict[str, Any], where: str, what: str, got: str, expected: str | None
) -> None:
    with pytest.raises(MalformedError) as caught:
        decode(Value, {"text": "a", **change}, "f")
    error = caught.value
    assert (error.where, error.what) == (where, what)
    assert got in str(error.got)
    assert str(error.expected).startswith(str(expected))


def test_path_without_a_root_starts_at_the_field() -> None:
    with pytest.raises(MalformedError) as caught:
        decode(Value, {"text": "a", "inner": {"number": "1"}})
    assert caught.value.where == "inner.number"


def test_unknown_keys_come_before_missing_ones() -> None:
    with pytest.raises(MalformedError, match="did you mean text") as caught:
        decode(Value, {"test": "a"}, "f")
    assert caught.value.where == "f.test"


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 100_000, b"9" * 5_000], ids=lambda text: repr(text[:2]))
def test_invalid_json_is_malformed(text: bytes) -> None:
    with pytest.raises(MalformedError):
        decode_json(Value, text, "f")


@dataclass(frozen=True)
class Chain:
    next: Chain | None = None


def test_depth_of_data_is_bounded() -> None:
    value: dict[str, Any] = {}
    for _ in range(100_000):
        value = {"next": value}
    with pytest.raises(MalformedError, match="nested too deeply"):
        decode(Chain, value)
    assert decode(Chain, {"next": {"next": None}}) == Chain(Chain())


def test_value_without_plain_form_is_refused() -> None:
    with pytest.raises(TypeError, match="object has no plain form"):
        encode(object())


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*vars(VALUE), "z"]), inner, max_size=4)
    ),
)


@given(PLAIN)
def test_any_data_is_read_or_malformed(plain: Any) -> None:
    """What is read is written as it was, with the defaults."""
    try:
        value = decode(Value, plain)
    except MalformedError:
        return
    assert decode(Value, encode(value)) == value


@dataclass(frozen=True)
class Two:
    first: int
    second: int


def test_first_of_several_missing_keys_is_named() -> None:
    with pytest.raises(MalformedError) as caught:
        decode(Two, {})
    assert caught.value.expected == "first"
