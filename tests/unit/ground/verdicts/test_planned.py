"""A planned case is its fields; its key and its command line stand next to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from matrix.ground.catalog.codec import MalformedError, decode, encode
from matrix.ground.catalog.failure import Expectation, Level
from matrix.ground.verdicts.planned import Planned
from tests.unit.catalogs import catalog, failure, planned

CASE = planned(catalog(failure()))


def test_case_survives_the_round_trip() -> None:
    assert decode(Planned, encode(CASE)) == CASE


def test_key_names_cell_failure_case_and_level() -> None:
    assert CASE.key == f"{CASE.cell.id} {CASE.failure} {CASE.case} {CASE.level.value}"
    assert encode(CASE)["key"] == CASE.key


@pytest.mark.parametrize(
    ("change", "where", "what"),
    [
        ({"key": "another"}, "key", "a case whose key is not its own"),
        ({"level": "moon"}, "level", "unknown value"),
        ({"ranks": 0}, None, "not a valid value"),
        ({"gpus": -1}, None, "not a valid value"),
        ({"launcher": "sh"}, None, "not a valid value"),
        ({"ranks": True}, "ranks", "a value of the wrong type"),
        ({"packages": "numpy==2"}, "packages", "not a list"),
        ({"rank": 2}, "rank", "unknown key"),
        ({"why": [{"kind": "stack"}]}, "why[0]", "a key is missing"),
    ],
)
def test_malformed_case_raises_with_its_path(change: dict[str, Any], where: str | None, what: str) -> None:
    with pytest.raises(MalformedError) as caught:
        decode(Planned, {**encode(CASE), **change})
    assert (caught.value.where, caught.value.what) == (where, what)


def test_case_that_is_no_table_is_malformed() -> None:
    with pytest.raises(MalformedError):
        decode(Planned, ["cell"])


def test_case_without_a_writer_has_none() -> None:
    assert CASE.writer is None
    assert replace(CASE, level=Level.GPU, expectation=Expectation.WORKS).writer is None
