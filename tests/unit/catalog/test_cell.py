"""Cells have one id each, and clauses match the cells that meet their conditions."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.catalog.cell import Cell, parse_cell_id
from matrix.catalog.codec import decode, encode
from matrix.catalog.versions import NONE
from matrix.errors import MatrixError
from tests.unit.catalogs import clause

CELL = Cell("ngc-24.07", "2.4.0a0+3bcc3cddb5", "0.8.0rc0", "1.8.0+37280ec", "535.129.03", "3.10", "8.0", "8")
VERSIONS = st.sampled_from([NONE, "0.8.0", "0.8.0rc0", "1.8.0+37280ec", "1.9.0.dev0+f9dd37f", "470.161.03"])
BASES = st.from_regex(r"[a-z][a-z0-9.+_-]{0,12}", fullmatch=True)


def test_a_cell_has_a_readable_id() -> None:
    assert CELL.id == "ngc-24.07/mcore-0.8.0rc0/te-1.8.0+37280ec/driver-535.129.03"


@given(BASES, VERSIONS, VERSIONS, VERSIONS)
def test_an_id_is_read_back(base: str, core: str, engine: str, driver: str) -> None:
    cell = Cell(base, "2.4.0", core, engine, driver)
    assert {"base": base, "mcore": core, "te": engine, "driver": driver} == parse_cell_id(cell.id)


def test_json_keeps_every_axis() -> None:
    assert decode(Cell, json.loads(json.dumps(encode(CELL)))) == CELL
    assert encode(CELL)["id"] == CELL.id


def test_cells_of_earlier_versions_are_read() -> None:
    """Records had six keys."""
    earlier = {key: encode(CELL)[key] for key in ("id", "base", "torch", "mcore", "te", "driver")}
    assert decode(Cell, earlier) == replace(CELL, python=NONE, sm=NONE, gpus=NONE)


@pytest.mark.parametrize(
    "text",
    ["", "torch-2.4.0", "torch-2.4.0/0.8.0/none/none", f"{CELL.id}/more", "a/te-1/mcore-1/driver-1", "a/mcore-1/te-1"],
)
def test_a_malformed_id_raises_with_the_form(text: str) -> None:
    with pytest.raises(MatrixError) as caught:
        parse_cell_id(text)
    assert caught.value.expected == "BASE/mcore-VERSION/te-VERSION/driver-VERSION"


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
    assert matches == clause(**bounds).matches(CELL)


def test_a_condition_on_an_unused_axis_fails() -> None:
    assert not clause(te=">=0").matches(Cell("torch-2.4.0", "2.4.0", "0.8.0"))


def test_str_of_a_clause_lists_its_conditions() -> None:
    condition = clause(base=["ngc-24.07"], mcore=">=0.7,<0.9", torch=">=2.4")
    assert str(condition) == "base in (ngc-24.07) and torch >=2.4 and mcore >=0.7,<0.9"
    assert str(clause()) == "everything"


@given(st.lists(st.sampled_from(["numpy==2.5.5", "nvidia-resiliency-ext==0.4.1", "transformers==5.23.0"]), unique=True))
def test_an_id_keeps_packages_and_writer(packages: list[str]) -> None:
    cell = replace(CELL, packages=tuple(packages), provided=("setuptools==80.0",), writer_mcore="0.19.2")
    named = parse_cell_id(cell.id)
    assert (tuple(packages), "0.19.2") == (named.get("packages", ()), named["writer_mcore"])
    assert decode(Cell, json.loads(json.dumps(encode(cell)))) == cell
    assert "setuptools" not in cell.id


def test_a_clause_bounds_packages() -> None:
    """A package laid over the base counts, then one that the base has; one that is neither matches no range."""
    laid = replace(CELL, packages=("numpy==2.5.5",), provided=("numpy==1.26.4",))
    clauses = [clause(packages={"numpy": ">=2"}), clause(packages={"setuptools": ">=0"})]
    assert [one.matches(laid) for one in clauses] == [True, False]
    assert [one.matches(replace(laid, packages=())) for one in clauses] == [False, False]
    assert str(clauses[0]) == "numpy >=2"


def test_a_writer_cell_has_the_writers_packages() -> None:
    assert CELL.writer is None
    assert replace(CELL, writer_mcore="0.19.2").writer == replace(CELL, mcore="0.19.2")
    assert replace(CELL, writer_te="2.0").writer == replace(CELL, te="2.0")
