"""CUDA's compiler, and the variables of a build with it."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from typing import Final

NVCC: Final = "nvcc"  # also the name of a feature of a base (matrix.planning.requirements.BaseFeature)
CUDA: Final = "/usr/local/cuda"  # where CUDA is installed unless CUDA_HOME names another folder
VARIABLES: Final = re.compile(r"NVTE_\w+|CUDNN_\w+|CUDA_HOME|TORCH_CUDA_ARCH_LIST|MAX_JOBS")
PASSED: Final = "MEGATRIX_BUILD"


def variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of a build of Transformer Engine; a cell has them in one, PASSED, as JSON."""
    given = {name: value for name, value in environ.items() if VARIABLES.fullmatch(name)}
    return dict(sorted({**json.loads(environ.get(PASSED) or "{}"), **given}.items()))


def nvcc(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the path of the CUDA compiler, None without one."""
    home = variables(environ).get("CUDA_HOME", CUDA)
    return shutil.which(NVCC, path=f"{environ.get('PATH', '')}{os.pathsep}{home}/bin")
