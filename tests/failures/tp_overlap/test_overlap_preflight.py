"""The preflight on machines: which known failures a job will end with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from matrix.catalog.cell import Cell
from matrix.check.examine import Assumed, examine
from matrix.check.facts import HostFacts
from matrix.check.job import NO_JOB
from matrix.execution.preflights import preflight_of
from matrix.kit.preflight import Report
from matrix.provision.nvidia.cuda import Cuda
from tests.founding import BEHIND_MPI, HARDWARE, MPI
from tests.unit.catalogs import real
from tests.unit.check.machines import A800, BARE, NGC

PREFLIGHT = preflight_of(Path(__file__).parent)
CELL = Cell("", "2.4.0a0+3bcc3cddb5.nv24.07", "0.9.0", "1.8.0+37280ec", image="ngc-24.07")


def report(host: HostFacts, cell: Cell = CELL) -> Report:
    return examine(PREFLIGHT, cell, NO_JOB, host, Assumed(), real().failures)


def failures(host: HostFacts, cell: Cell = CELL) -> list[str]:
    return [answer.failure for answer in report(host, cell).answers if answer.error]


def test_each_error_names_its_catalog_entry() -> None:
    assert failures(NGC) == [MPI, BEHIND_MPI]


def test_a_variable_of_the_environment_counts() -> None:
    old = replace(NGC, cuda=Cuda("12.5", "libcuda.so.1", (A800,)), environ={"OMPI_COMM_WORLD_SIZE": "8"})
    cell = replace(CELL, te="1.13.0", mcore="0.10.0")
    assert failures(old, cell) == [HARDWARE]
    assert failures(replace(old, environ={**old.environ, "UB_SKIPMC": "1"}), cell) == []


def test_without_transformer_engine_nothing_is_judged() -> None:
    found = report(BARE, replace(CELL, te="none"))
    assert (found.judged, found.fails) == (False, False)
    assert "names no Transformer Engine" in found.answers[0].reason


@pytest.mark.parametrize(("launcher", "clears"), [("OMPI_COMM_WORLD_SIZE", True), ("SLURM_PROCID", False)])
def test_whole_mpi_world_clears_the_failure(launcher: str, clears: bool) -> None:
    assert report(replace(NGC, environ={launcher: "8"})).clears is clears
