"""What a stack states, and the words that mean a component."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.catalog.cell import Clause
from matrix.ground.catalog.codec import MalformedError, decode, encode
from matrix.ground.catalog.stack import (
    ABSENT,
    BASE,
    DRIVER,
    MCORE,
    TE,
    TORCH,
    UNKNOWN,
    WRITER_MCORE,
    Absence,
    Component,
    Stack,
    Value,
    component_named,
    component_title,
    components,
    in_order,
    known_component,
    short,
)
from matrix.ground.errors import MatrixError

OPEN = Stack({MCORE: "0.8.0", TE: ABSENT})
CLOSED = Stack({MCORE: "0.8.0", DRIVER: UNKNOWN}, ABSENT)


@pytest.mark.parametrize(
    ("stack", "name", "value", "version"),
    [
        (OPEN, MCORE, "0.8.0", "0.8.0"),
        (OPEN, TE, ABSENT, None),
        (OPEN, TORCH, UNKNOWN, None),
        (CLOSED, DRIVER, UNKNOWN, None),
        (CLOSED, TORCH, ABSENT, None),
        (Stack(), TORCH, UNKNOWN, None),
    ],
)
def test_component_without_a_value_is_as_the_rest(stack: Stack, name: str, value: Value, version: str | None) -> None:
    assert (stack[name], stack.version(name)) == (value, version)


def test_value_of_the_rest_is_not_stated() -> None:
    """So that equal stacks are equal, and have one hash."""
    open_stack, closed_stack = (
        Stack({**OPEN.components, TORCH: UNKNOWN}),
        Stack({**CLOSED.components, TE: ABSENT}, ABSENT),
    )
    assert (open_stack, hash(open_stack), list(open_stack)) == (OPEN, hash(OPEN), [MCORE, TE])
    assert (closed_stack, hash(closed_stack), list(closed_stack)) == (CLOSED, hash(CLOSED), [MCORE, DRIVER])
    assert OPEN.versions == CLOSED.versions == {MCORE: "0.8.0"}


def test_closed_stack_differs_from_an_open_one() -> None:
    assert Stack({MCORE: "0.8.0"}) != Stack({MCORE: "0.8.0"}, ABSENT)
    assert hash(Stack({MCORE: "0.8.0"})) != hash(Stack({MCORE: "0.8.0"}, ABSENT))
    assert hash(Stack({MCORE: "0.8.0"})) != hash(Stack({MCORE: "0.9.0"}))


@pytest.mark.parametrize("stack", [OPEN, CLOSED])
def test_changed_stack_keeps_the_others(stack: Stack) -> None:
    changed = stack.with_({MCORE: "0.9.0", "numpy": "2.1"})
    assert changed == Stack({**stack.components, MCORE: "0.9.0", "numpy": "2.1"}, stack.rest)


def test_stack_over_another_one() -> None:
    """What is laid over counts; all others are as in the base."""
    laid = Stack({MCORE: "0.9.0", "numpy": "2.1"})
    assert laid.over(CLOSED) == Stack({MCORE: "0.9.0", DRIVER: UNKNOWN, "numpy": "2.1"}, ABSENT)
    assert CLOSED.over(laid) == Stack({MCORE: "0.8.0", DRIVER: UNKNOWN, "numpy": "2.1"})


@pytest.mark.parametrize(
    ("stack", "plain"),
    [
        (Stack(), {}),
        (OPEN, {MCORE: "0.8.0", TE: "absent"}),
        (CLOSED, {MCORE: "0.8.0", DRIVER: "unknown", "*": "absent"}),
    ],
)
def test_plain_data_of_a_stack(stack: Stack, plain: dict[str, str]) -> None:
    assert json.loads(json.dumps(encode(stack))) == plain
    assert decode(Stack, plain) == stack


def test_rest_of_plain_data_is_no_version() -> None:
    assert decode(Stack, {MCORE: "0.8.0", "*": "1.0"}) == Stack({MCORE: "0.8.0"})


def test_malformed_plain_data_is_refused() -> None:
    with pytest.raises(MalformedError):
        decode(Stack, {MCORE: 8})


@pytest.mark.parametrize(("absence", "text"), [(ABSENT, "none"), (UNKNOWN, "unknown")])
def test_absence_as_text(absence: Absence, text: str) -> None:
    """As in ids and on the command line."""
    assert str(absence) == text


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("megatron-core", MCORE),
        ("mcore", MCORE),
        ("writer_mcore", WRITER_MCORE),
        ("te", TE),
        ("base", BASE),
        ("nvidia-nccl-cu12", "nccl"),
        ("Flash_Attn", "flash-attn"),
        ("Py.Yaml", "py-yaml"),  # a further package, in canonical form
        ("cuddn", ""),
    ],
)
def test_words_of_components(word: str, name: str) -> None:
    assert component_named(word, ["py-yaml"]) == name


@pytest.mark.parametrize("component", components().values(), ids=lambda component: component.name)
def test_every_word_of_the_table_is_known(component: Component) -> None:
    words = (component.name, component.short or component.name, *component.aliases)
    assert {component_named(word) for word in words} == {component.name}


def test_further_package_is_known_where_it_is_given() -> None:
    assert (component_named("py-yaml"), known_component("py-yaml", iter(["py-yaml"]))) == ("", "py-yaml")


@pytest.mark.parametrize(
    ("word", "further", "nearest"), [("cuddn", (), "cudnn"), ("transformer", ("transformers",), "transformers")]
)
def test_unknown_word_is_refused_with_the_nearest(word: str, further: tuple[str, ...], nearest: str) -> None:
    with pytest.raises(MatrixError, match="no such component") as caught:
        known_component(word, further)
    assert (caught.value.got, nearest in str(caught.value.fix)) == (word, True)


@pytest.mark.parametrize(
    ("name", "short_name", "title"),
    [(MCORE, "mcore", "megatron-core"), (TE, "te", "Transformer Engine"), ("nothing", "nothing", "nothing")],
)
def test_names_in_ids_and_sentences(name: str, short_name: str, title: str) -> None:
    assert (short(name), component_title(name)) == (short_name, title)


def test_component_without_further_names_keeps_its_own() -> None:
    unnamed = [name for name, component in components().items() if not component.short]
    assert unnamed
    assert [short(name) for name in unnamed] == [component_named(name) for name in unnamed] == unnamed


def test_components_are_in_the_tables_order() -> None:
    """Then the packages without a line, as they are given."""
    names = list(components())
    assert in_order(["zlib", *reversed(names), "attrs"]) == [*names, "zlib", "attrs"]


def test_bounds_are_keyed_by_any_name() -> None:
    plain: Mapping[str, Any] = {"mcore": ">=0.8", "numpy": "<2"}
    assert list(decode(Clause, plain).bounds) == [MCORE, "numpy"]
    assert encode(decode(Clause, {"megatron-core": ">=0.8"})) == {"base": [], "mcore": ">=0.8", "reason": ""}


NAMES = st.sampled_from([BASE, TORCH, MCORE, TE, "numpy"])
VALUES: st.SearchStrategy[Value] = st.sampled_from([ABSENT, UNKNOWN, "2.4.0", "0.8.0rc0", "1.8.0+37280ec"])
COMPONENTS = st.dictionaries(NAMES, VALUES)
STACKS = st.builds(Stack, COMPONENTS, st.sampled_from(Absence))


@given(STACKS, NAMES, VALUES)
def test_equal_values_make_equal_stacks(stack: Stack, name: str, value: Value) -> None:
    """However they were written: a value that all others have needs no entry."""
    changed = stack.with_({name: value})
    again = Stack(dict(reversed([*changed.components.items(), ("zarr", stack.rest)])), stack.rest)
    assert (again, hash(again)) == (changed, hash(changed))
    assert (changed[name], changed["zarr"]) == (value, stack.rest)


@given(STACKS, COMPONENTS)
def test_with_changes_only_what_it_names(stack: Stack, changes: dict[str, Value]) -> None:
    changed = stack.with_(changes)
    for name in (BASE, TORCH, MCORE, TE, "numpy", "zarr"):
        assert changed[name] == changes.get(name, stack[name])
    assert changed.rest is stack.rest


@given(STACKS, STACKS)
def test_a_base_provides_what_the_upper_leaves_open(upper: Stack, base: Stack) -> None:
    laid = upper.over(base)
    for name in (BASE, TORCH, MCORE, TE, "numpy"):
        assert laid[name] == (upper[name] if name in upper.components else base[name])
    assert laid.rest is base.rest


@given(STACKS, STACKS, STACKS)
def test_layers_can_be_joined_in_any_order(top: Stack, middle: Stack, bottom: Stack) -> None:
    """Absent in an upper layer removes a version; only layers that leave the rest open can be joined first."""
    top, middle, bottom = (Stack(layer.components) for layer in (top, middle, bottom))
    assert top.over(middle).over(bottom) == top.over(middle.over(bottom))


@given(STACKS)
def test_plain_data_is_read_back(stack: Stack) -> None:
    assert decode(Stack, json.loads(json.dumps(encode(stack)))) == stack
