"""The preflight on machines: which known failures a job will end with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from matrix.ask.check.examine import Assumed, examine
from matrix.ask.check.job_site import JobSite
from matrix.ask.check.training_job import NO_JOB
from matrix.ground.catalog.machine import Cuda
from matrix.ground.catalog.stack import ABSENT, BASE, MCORE, TE, TORCH, Stack
from matrix.kit.preflight import Report
from tests.founding import BEHIND_MPI, HARDWARE, MPI
from tests.unit.ask.check.machines import A800, BARE, NGC, changed
from tests.unit.catalogs import real

STACK = Stack({TORCH: "2.4.0a0+3bcc3cddb5.nv24.07", MCORE: "0.9.0", TE: "1.8.0+37280ec", BASE: "ngc-24.07"})


def report(host: JobSite, stack: Stack = STACK) -> Report:
    return examine(real().failure(MPI), stack, NO_JOB, host, Assumed(), real().failures)


def failures(host: JobSite, stack: Stack = STACK) -> list[str]:
    return [answer.failure for answer in report(host, stack).answers if answer.error]


def test_each_error_names_its_catalog_entry() -> None:
    assert failures(NGC) == [MPI, BEHIND_MPI]


def test_a_variable_of_the_environment_counts() -> None:
    old = replace(changed(NGC, cuda=Cuda("12.5", "libcuda.so.1", (A800,))), environ={"OMPI_COMM_WORLD_SIZE": "8"})
    stack = STACK.with_({TE: "1.13.0", MCORE: "0.10.0"})
    assert failures(old, stack) == [HARDWARE]
    assert failures(replace(old, environ={**old.environ, "UB_SKIPMC": "1"}), stack) == []


def test_without_transformer_engine_nothing_is_judged() -> None:
    found = report(BARE, STACK.with_({TE: ABSENT}))
    assert (found.judged, found.fails) == (False, False)
    assert "names no Transformer Engine" in found.answers[0].reason


@pytest.mark.parametrize(("launcher", "clears"), [("OMPI_COMM_WORLD_SIZE", True), ("SLURM_PROCID", False)])
def test_whole_mpi_world_clears_the_failure(launcher: str, clears: bool) -> None:
    assert report(replace(NGC, environ={launcher: "8"})).clears is clears
