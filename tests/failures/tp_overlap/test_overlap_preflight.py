"""The preflight on machines: which known failures a job will end with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from matrix.check.examine import Assumed, examine
from matrix.check.facts import HostFacts
from matrix.execution.preflights import preflight_of
from matrix.provision.nvidia.cuda import Cuda
from tests.founding import BEHIND_MPI, HARDWARE, MPI
from tests.unit.catalogs import real
from tests.unit.check.machines import A800, BARE, NGC

PREFLIGHT = preflight_of(Path(__file__).parent)


def failures(host: HostFacts, assumed: Assumed) -> list[str]:
    (report,) = examine(host, assumed, real().failures, [PREFLIGHT]).reports
    return [answer.failure for answer in report.answers if answer.error]


def test_each_error_names_its_catalog_entry() -> None:
    assert failures(NGC, Assumed()) == [MPI, BEHIND_MPI]


def test_a_variable_of_the_environment_counts() -> None:
    old = replace(NGC, cuda=Cuda("12.5", "libcuda.so.1", (A800,)), environ={"OMPI_COMM_WORLD_SIZE": "8"})
    assumed = Assumed(te="1.13.0", mcore="0.10.0")
    assert failures(old, assumed) == [HARDWARE]
    assert failures(replace(old, environ={**old.environ, "UB_SKIPMC": "1"}), assumed) == []


def test_without_transformer_engine_nothing_is_judged() -> None:
    (report,) = examine(BARE, Assumed(), known=[PREFLIGHT]).reports
    assert (report.judged, report.fails) == (False, False)
    assert "name one with --te" in report.answers[0].reason
