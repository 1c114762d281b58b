"""TransformerEngine#985, Megatron-LM#1274: an mpi group that the launcher's MPI world can't carry."""

from __future__ import annotations

import pytest

from matrix.catalog.failure import Level
from matrix.execution.reproduction import Reproduction
from tests.failures.tp_overlap_contract import outcome_of


@pytest.mark.failure("tp-overlap")
def test_start(reproduction: Reproduction) -> None:
    """Megatron-LM starts userbuffers, for a launcher and a bootstrap backend; level contract reads whether it can."""
    if reproduction.planned.level is Level.CONTRACT:
        reproduction.read(lambda: outcome_of(reproduction.planned.cell, reproduction.case))
        return
    backend = reproduction.case.split("-")[1]
    reproduction.run(
        "tests.failures.tp_overlap:through_megatron",
        bootstrap=backend if backend in ("gloo", "mpi", "nccl") else None,
        parameter_checks=reproduction.case.endswith("checked"),
        multicast=reproduction.case.endswith("multicast"),
    )


@pytest.mark.failure("tp-overlap")
def test_direct(reproduction: Reproduction) -> None:
    """Transformer Engine starts userbuffers with the bootstrap backend that it chooses itself."""
    reproduction.run("tests.failures.tp_overlap:through_transformer_engine", parameter_checks=False)


@pytest.mark.failure("tp-overlap")
def test_mechanism(reproduction: Reproduction) -> None:
    """A group of all ranks is made in the MPI world that the launcher gives, by Open MPI alone."""
    checked = reproduction.case == "mechanism-checked"
    reproduction.run("tests.failures.mpi_group:make_group", parameter_checks=checked)
