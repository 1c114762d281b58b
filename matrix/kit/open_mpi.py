"""Open MPI as a rank is to have it: told by its environment, before it starts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def prepare(rank: Rank, *, parameter_checks: bool) -> None:
    """Set parameter checks on, or off as HPC-X builds it; have what a crash leaves behind go with the rank's folder."""
    os.environ["OMPI_MCA_mpi_param_check"] = str(int(parameter_checks))  # noqa: SIM112  (its name)
    os.environ["TMPDIR"] = str(rank.workdir)  # its session folder
    os.environ["OMPI_MCA_btl_sm_backing_directory"] = str(rank.workdir)  # noqa: SIM112  (else /dev/shm)
