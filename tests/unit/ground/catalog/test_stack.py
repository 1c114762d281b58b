"""What a stack states, and the words that mean a component."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    WRITER_TE,
    Absence,
    Bound,
    Cell,
    Clause,
    Component,
    Stack,
    Value,
    component_named,
    component_title,
    components,
    in_order,
    known_component,
    parse_cell_id,
    short,
)
from matrix.ground.errors import MatrixError
from tests.unit.catalogs import cell, clause, values

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


CELL = cell(
    "ngc-24.07",
    torch="2.4.0a0+3bcc3cddb5",
    mcore="0.8.0rc0",
    te="1.8.0+37280ec",
    driver="535.129.03",
    python="3.10",
    sm="8.0",
    gpus="8",
    image="ngc-24.07",
)
VERSIONS = st.sampled_from(["none", "0.8.0", "0.8.0rc0", "1.8.0+37280ec", "1.9.0.dev0+f9dd37f", "470.161.03"])
BASES = st.from_regex(r"[a-z][a-z0-9.+_-]{0,12}", fullmatch=True)


def test_a_cell_has_a_readable_id() -> None:
    assert CELL.id == "ngc-24.07/mcore-0.8.0rc0/te-1.8.0+37280ec/driver-535.129.03"


@given(BASES, VERSIONS, VERSIONS, VERSIONS)
def test_an_id_is_read_back(base: str, core: str, engine: str, driver: str) -> None:
    named = values(mcore=core, te=engine, driver=driver)
    read = parse_cell_id(cell(base, mcore=core, te=engine, driver=driver).id)
    assert read == {"base": base, "values": named, "packages": ()}


def test_plain_data_keeps_every_component() -> None:
    assert decode(Cell, json.loads(json.dumps(encode(CELL)))) == CELL
    assert encode(CELL)["id"] == CELL.id


def test_id_of_a_writer_has_hyphens() -> None:
    assert CELL.with_({WRITER_MCORE: "0.19.2", WRITER_TE: "2.0"}).id == f"{CELL.id}/writer-mcore-0.19.2/writer-te-2.0"


@pytest.mark.parametrize(
    "text",
    ["", "torch-2.4.0", "torch-2.4.0/0.8.0/none/none", f"{CELL.id}/more", "a/te-1/mcore-1/driver-1", "a/mcore-1/te-1"],
)
def test_a_malformed_id_raises_with_the_form(text: str) -> None:
    with pytest.raises(MatrixError) as caught:
        parse_cell_id(text)
    assert caught.value.expected == "BASE/mcore-VERSION/te-VERSION/driver-VERSION"


@pytest.mark.parametrize(
    ("text", "got", "expected"),
    [
        ("b/mcore-x/te-1/driver-1", "x", "0.9.0, or none"),
        ("b/mcore-1/te-1/driver-1/numpy-x", "x", "2.3.0, or none"),
        ("b/mcore-1/te-1/driver-1/zarr-x", "x", "1.2.3, or none"),  # no line of components.toml
    ],
)
def test_part_without_a_version_raises_with_an_example(text: str, got: str, expected: str) -> None:
    with pytest.raises(MatrixError, match="not a version of") as caught:
        parse_cell_id(text)
    assert (caught.value.where, caught.value.got, caught.value.expected) == (text, got, expected)


@pytest.mark.parametrize(
    ("answers", "depends"),
    [
        ({}, (BASE, MCORE, TE)),
        ({MCORE: True}, (BASE, TE)),
        ({BASE: True, MCORE: True, TE: True}, ()),
        ({TE: False}, None),
        ({BASE: False}, None),
    ],
)
def test_unknown_components_may_be_decided(answers: dict[str, bool], depends: tuple[str, ...] | None) -> None:
    """True, False, or not known: of each component with its condition."""
    condition = clause(base=["ngc-24.07", "ngc-24.06"], mcore="<0.9", te=">=1.8", torch=">=2")
    unknown: dict[str, Bound] = {}

    def decide(name: str, bound: Bound) -> bool | None:
        unknown[name] = bound
        return answers.get(name)

    assert condition.depends_on(Stack({TORCH: "2.4.0"}), decide) == depends
    assert unknown.items() <= {BASE: ("ngc-24.07", "ngc-24.06"), **condition.bounds}.items()
    assert condition.components == (BASE, TORCH, MCORE, TE)
    assert clause(te=">=1.8").components == (TE,)


@pytest.mark.parametrize("versions", [{"mcore": "0.9.0"}, {"mcore": "none"}])
def test_condition_that_fails_decides(versions: dict[str, str]) -> None:
    """Whatever the unknown components are."""
    assert clause(mcore="<0.9", te=">=1.8").depends_on(Stack(values(**versions))) is None


@pytest.mark.parametrize(
    ("bounds", "matches"),
    [
        ({}, True),
        ({"base": ["ngc-24.07"]}, True),
        ({"base": ["ngc-24.06", "ngc-24.07"]}, True),
        ({"base": ["ngc-24.06"]}, False),
        ({"mcore": "==0.8.0rc0", "te": ">1.8.0"}, True),
        ({"mcore": "==0.8.0rc0", "te": ">=1.9"}, False),
        ({"torch": "<2.4.0"}, True),
        ({"driver": ">=535"}, True),
        ({"driver": "<535"}, False),
        ({"sm": "==8.0", "gpus": ">=2", "python": "<3.12"}, True),
        ({"sm": ">=9.0"}, False),
    ],
)
def test_every_condition_of_a_clause_must_hold(bounds: Any, matches: bool) -> None:
    assert matches == clause(**bounds).matches(CELL.stack)


def test_a_condition_on_an_unused_axis_fails() -> None:
    assert not clause(te=">=0").matches(cell(torch="2.4.0", mcore="0.8.0").stack)


def test_reason_is_one_line() -> None:
    """Tables, `check` and `explain` print it within a line; TOML may break it."""
    assert clause(reason="\nread at the tags;\nrun with 0.8.0").reason == "read at the tags; run with 0.8.0"


def test_str_of_a_clause_lists_its_conditions() -> None:
    condition = clause(base=["ngc-24.07", "ngc-24.06"], mcore=">=0.7,<0.9", torch=">=2.4")
    assert str(condition) == "base in (ngc-24.07, ngc-24.06) and torch >=2.4 and mcore >=0.7,<0.9"
    assert str(clause()) == "everything"


@given(st.lists(st.sampled_from(["numpy==2.5.5", "nvidia-resiliency-ext==0.4.1", "transformers==5.23.0"]), unique=True))
def test_an_id_keeps_packages_and_writer(packages: list[str]) -> None:
    laid = dict(package.split("==") for package in packages)
    further = {**laid, "setuptools": "80.0", WRITER_MCORE: "0.19.2"}
    whole = replace(CELL, stack=CELL.stack.with_(further), packages=tuple(laid))
    named = parse_cell_id(whole.id)
    assert (named["packages"], named["values"][WRITER_MCORE], whole.pins) == (tuple(laid), "0.19.2", tuple(packages))
    assert decode(Cell, json.loads(json.dumps(encode(whole)))) == whole
    assert "setuptools" not in whole.id


def test_a_clause_bounds_packages() -> None:
    """One that nothing names matches no range for certain."""
    laid = Stack({"numpy": "2.5.5"}).over(Stack({"numpy": "1.26.4", TORCH: "2.4.0"}))
    clauses = [clause(packages={"numpy": ">=2"}), clause(packages={"setuptools": ">=0"})]
    assert [one.matches(laid) for one in clauses] == [True, False]
    assert [one.depends_on(laid) for one in clauses] == [(), ("setuptools",)]
    assert str(clauses[0]) == "numpy >=2"


def test_a_writer_cell_has_the_writers_packages() -> None:
    assert CELL.writer is None
    assert CELL.with_({WRITER_MCORE: "0.19.2"}).writer == CELL.with_({MCORE: "0.19.2"})
    assert CELL.with_({WRITER_TE: "2.0"}).writer == CELL.with_({TE: "2.0"})
