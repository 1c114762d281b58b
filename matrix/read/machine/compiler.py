"""The CUDA compiler of this machine, and the variables of a build that uses it."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from functools import cache
from typing import Final

from matrix.ground.catalog.versions import NONE
from matrix.read.commands import run

NVCC: Final = "nvcc"  # also the name of a feature of a base (matrix.ground.cases.machine_requirements.BaseFeature)
CUDA: Final = "/usr/local/cuda"  # where CUDA is installed unless CUDA_HOME names another folder
VARIABLES: Final = re.compile(r"NVTE_\w+|CUDNN_\w+|CUDA_HOME|TORCH_CUDA_ARCH_LIST|MAX_JOBS")
PASSED: Final = "MEGATRIX_BUILD"


def build_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of a build of Transformer Engine; a cell has them in one, PASSED, as JSON."""
    variables = {name: value for name, value in environ.items() if VARIABLES.fullmatch(name)}
    return dict(sorted({**json.loads(environ.get(PASSED) or "{}"), **variables}.items()))


def nvcc(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the path of the CUDA compiler, None without one."""
    home = build_variables(environ).get("CUDA_HOME", CUDA)
    return shutil.which(NVCC, path=f"{environ.get('PATH', '')}{os.pathsep}{home}/bin")


def nvcc_version() -> str:
    """Return the CUDA version of this machine's compiler ("13.0"), "none" without one."""
    compiler = nvcc()
    match = re.search(r"release (\d+\.\d+)", version_text(compiler)) if compiler else None
    return match[1] if match else NONE


@cache
def version_text(compiler: str) -> str:
    """Return what the compiler prints of itself; asked once, not for each case of a plan."""
    return run([compiler, "--version"]).out.strip()
