"""Cells have one id each, and clauses match the cells that meet their conditions."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.catalog.cell import Bound, Cell, parse_cell_id
from matrix.ground.catalog.codec import decode, encode
from matrix.ground.catalog.stack import BASE, MCORE, TE, TORCH, WRITER_MCORE, WRITER_TE, Stack
from matrix.ground.errors import MatrixError
from tests.unit.catalogs import cell, clause, values

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
