"""The environment variables of ranks. At level cpu they are a list: no verdict depends on what else a machine sets.

| of the machine | at level cpu |
|---|---|
| CUDA toolkit, nvcc, ninja, compilers, make | not found: PATH is the interpreter's folder, CUDA_HOME does not exist |
| GPUs | hidden (matrix.prove.execution.ranks.rank_spec) |
| locale | C.UTF-8 |
| PYTHON*, TORCH_*, NVTE_*, NCCL_*, OMP_*, CC, CFLAGS ... | removed |
| PYTHONPATH, user site-packages | sys.path is that of the cell's interpreter, which is started without them |

Example: with a toolkit under /usr/local/cuda and ninja, megatron-core 0.15.3 compiles at its import, and raises
IndexError without a GPU (Megatron-LM#2715). Level gpu is the machine as it is, so its ranks keep every variable.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from matrix.prove.provision.bases import CELL_SETTINGS

# The variables of the machine that ranks at level cpu keep, each with its reason.
KEPT: Final[dict[str, str]] = {
    "HOME": "libraries write caches and read the user's name there",
    "LD_LIBRARY_PATH": "a Python or an MPI of an environment module does not start without it",
    "LOGNAME": "torch asks for the user's name",
    "TMPDIR": "the machine's place for temporary files",
    "TZ": "the times in logs",
    "USER": "torch asks for the user's name",
}
# Open MPI's: of an image, whose MPI may be relocated, and of its launcher. A base of wheels gets none.
MPI: Final = ("OMPI_", "OPAL_", "PMIX_", "PRTE_")
# torch.cuda.is_available() then queries NVML, and does not start CUDA, which would not work in a process forked later.
NVML_CHECK: Final = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
FIXED: Final = {
    **CELL_SETTINGS,
    **NVML_CHECK,
    "CUDA_HOME": "/nonexistent",  # unset, torch looks for nvcc, then for /usr/local/cuda
    "LC_ALL": "C.UTF-8",
    "PATH": str(Path(sys.executable).parent),
}


def of_cpu(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of ranks at level cpu, without those of their launcher."""
    return {**{name: value for name, value in environ.items() if name in KEPT or name.startswith(MPI)}, **FIXED}


def of_device(device: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of ranks on "cpu" or "cuda"."""
    return of_cpu(environ) if device == "cpu" else {**NVML_CHECK, **environ}
