"""TransformerEngine#985, Megatron-LM#1274: an mpi group that the launcher's MPI world can't carry."""

from __future__ import annotations

import pytest

from matrix.reproduction import Reproduction
from tests.failures.tp_overlap_contract import outcome_of


@pytest.mark.failure("tp-overlap")
def test_contract(reproduction: Reproduction) -> None:
    """The MPI world is as large as the group that userbuffers make, for a launcher and a bootstrap backend."""
    reproduction.read(lambda: outcome_of(reproduction.planned.cell, reproduction.case))
