"""The cases of the current environment, the base `host`."""

from __future__ import annotations

import pytest

from matrix.catalog.failure import Level
from matrix.catalog.model import HOST
from matrix.errors import MatrixError
from matrix.planning.host_cases import cases_here, with_host
from tests.founding import SAVE
from tests.unit.catalogs import real

LEVELS = (Level.CONTRACT, Level.CPU)


def test_an_environment_with_torch_runs_its_own_megatron() -> None:
    packages = {"torch": "2.4.0", "megatron-core": "0.8.0"}
    cases = cases_here(with_host(real(), packages, "3.10"), HOST, packages, LEVELS)
    assert {(item.cell.base, item.cell.torch) for item in cases} == {(HOST, "2.4.0")}
    assert {item.cell.mcore for item in cases} <= {"0.8.0", "none"}
    assert SAVE in {item.failure for item in cases}


def test_an_environment_without_torch_runs_level_contract() -> None:
    cases = cases_here(with_host(real(), {}, "3.11"), HOST, {}, LEVELS)
    assert {(item.cell.base, item.cell.torch, item.level) for item in cases} == {(HOST, "none", Level.CONTRACT)}


def test_an_environment_without_a_case_raises() -> None:
    packages = {"megatron-core": "0.0.1"}
    with pytest.raises(MatrixError, match="the catalog has no case for this environment"):
        cases_here(with_host(real(), packages, "3.11"), HOST, packages, LEVELS)
