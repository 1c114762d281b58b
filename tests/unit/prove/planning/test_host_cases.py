"""The cases of the current environment, the base `host`."""

from __future__ import annotations

import pytest

from matrix.ground.catalog.failure import Expectation, Level
from matrix.ground.catalog.model import HOST
from matrix.ground.catalog.stack import ABSENT, BASE, MCORE, TE, TORCH
from matrix.ground.errors import MatrixError
from matrix.prove.planning.case_request import cases_here, with_host
from tests.founding import MPI, SAVE
from tests.unit.catalogs import real

LEVELS = (Level.CONTRACT, Level.CPU)


def test_an_environment_with_torch_runs_its_own_megatron() -> None:
    packages = {"torch": "2.4.0", "megatron-core": "0.8.0"}
    cases = cases_here(with_host(real(), packages, "3.10"), HOST, packages, LEVELS)
    assert {(item.cell.base, item.cell.stack[TORCH]) for item in cases} == {(HOST, "2.4.0")}
    assert {item.cell.stack[MCORE] for item in cases} <= {"0.8.0", ABSENT}
    assert SAVE in {item.failure for item in cases}


def test_an_environment_without_torch_runs_level_contract() -> None:
    cases = cases_here(with_host(real(), {}, "3.11"), HOST, {}, LEVELS)
    assert {(item.cell.base, item.cell.stack[TORCH], item.level) for item in cases} == {(HOST, ABSENT, Level.CONTRACT)}


def test_an_environment_without_a_case_raises() -> None:
    packages = {"megatron-core": "0.0.1"}
    with pytest.raises(MatrixError, match="the catalog has no case for this environment"):
        cases_here(with_host(real(), packages, "3.11"), HOST, packages, LEVELS)


NGC = "2.4.0a0+3bcc3cddb5.nv24.7"  # as its dist-info has it: PEP 440 normalises .nv24.07


def standing_in(torch: str, label: str = "", core: str = "0.8.0") -> dict[str, Expectation]:
    """Return the expectation of each case of the DCP assertion in an environment with this torch."""
    packages = {"torch": torch, "megatron-core": core}
    cases = cases_here(with_host(real(), packages, "3.10", label), HOST, packages, LEVELS)
    return {item.case: item.expectation for item in cases if item.failure == SAVE}


def test_rules_that_name_a_container_apply_in_it() -> None:
    assert standing_in(NGC) == dict.fromkeys(("tp2", "pp2", "world1", "train-loop"), Expectation.BROKEN)


@pytest.mark.parametrize(
    ("torch", "label", "container"),
    [
        (NGC, "", "ngc-24.07"),
        ("2.4.0a0+3bcc3cddb5.nv24.07", "24.07", "ngc-24.07"),
        ("2.4.0a0+3bcc3cddb5", "", "ngc-24.07"),
        ("2.6.0a0+df5bbc0.nv24.11", "", "ngc-24.11"),  # a short commit; 24.12 has the same torch
        ("2.6.0a0+df5bbc09d1", "24.12", "ngc-24.12"),
        ("2.6.0a0+df5bbc09d1", "", "none"),  # two containers have it
        ("2.8.0a0+0123456789.nv25.7", "25.07", "ngc-25.07"),  # whose torch is in no table
        ("2.4.0", "24.07", "none"),  # torch was replaced in the container
        ("2.4.0a0+1234567", "24.07", "none"),
    ],
)
def test_host_s_torch_is_mapped_to_its_container(torch: str, label: str, container: str) -> None:
    known = with_host(real(), {"torch": torch}, "3.10", label)
    assert str(known.cell(HOST, {MCORE: "0.8.0"}).stack[BASE]) == container


@pytest.mark.parametrize("core", ["0.9.0", "0.10.0", "0.11.0"])
def test_unmeasured_torch_is_not_claimed_to_work(core: str) -> None:
    assert set(standing_in("2.7.0a0+7c8ec84dab.nv25.3", "25.03", core).values()) == {Expectation.UNKNOWN}


def test_installed_te_is_a_cell_although_unlisted() -> None:
    """NGC 24.03 ships Transformer Engine 1.4.0, which is in no list of a failure."""
    packages = {"torch": "2.3.0a0+40ec155e58.nv24.3", "transformer-engine": "1.4.0", "megatron-core": "0.7.0"}
    cases = cases_here(with_host(real(), packages, "3.10"), HOST, packages, (Level.GPU,))
    cells = {
        (item.cell.stack[TE], item.expectation) for item in cases if item.failure == MPI and item.case == "gpu-mpi"
    }
    assert cells == {("1.4.0", Expectation.BROKEN)}
