"""Settings of Open MPI in a rank's environment, made before MPI starts."""

from __future__ import annotations

import faulthandler
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def prepare(rank: Rank, *, parameter_checks: bool) -> None:
    """Set parameter checks on, or off as in HPC-X, and put Open MPI's files into the rank's folder.

    A crash can leave these files behind; they are removed with the folder. On a GPU, faulthandler is switched off:
    before Python 3.14 it prints no C stack, and prevents Open MPI and UCX from printing theirs.
    """
    if rank.device == "cuda":
        faulthandler.disable()
    os.environ["OMPI_MCA_mpi_param_check"] = str(int(parameter_checks))  # noqa: SIM112  (its name)
    os.environ["TMPDIR"] = str(rank.workdir)  # its session folder
    os.environ["OMPI_MCA_btl_sm_backing_directory"] = str(rank.workdir)  # noqa: SIM112  (else /dev/shm)
