from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from matrix.prove.execution.ranks import variables
from matrix.prove.execution.ranks.supervisor import Supervisor
from matrix.prove.provision.bases import CELL_SETTINGS
from tests.unit.prove.execution.ranks.test_rank_group import MakeJob

# What a machine may set that changes a verdict.
HOST = {
    "CC": "/opt/cc",
    "CUDA_PATH": "/usr/local/cuda",
    "LANG": "de_DE.ISO-8859-1",
    "NCCL_DEBUG": "INFO",
    "NVTE_FLASH_ATTN": "0",
    "PYTHONOPTIMIZE": "1",
    "PYTHONPATH": "/opt/site",
    "PYTHONWARNINGS": "error",
    "TORCH_CUDA_ARCH_LIST": "9.0",
}


def test_ranks_at_level_cpu_get_listed_variables_only() -> None:
    kept = {name: f"the machine's {name}" for name in variables.KEPT}

    got = variables.of_device("cpu", {**HOST, **kept, "CUDA_HOME": "/cuda", "PATH": "/cuda/bin", "LC_ALL": "C"})

    assert got == {**kept, **variables.FIXED}
    assert CELL_SETTINGS.items() <= got.items()
    assert (got["CUDA_HOME"], got["LC_ALL"], got["PATH"]) == (
        "/nonexistent",
        "C.UTF-8",
        str(Path(sys.executable).parent),
    )


def test_ranks_at_level_gpu_keep_every_variable() -> None:
    assert variables.of_device("cuda", HOST) == {**HOST, **variables.NVML_CHECK}


def test_variables_of_an_images_mpi_are_kept() -> None:
    own = {"OPAL_PREFIX": "/opt/hpcx/ompi", "OMPI_MCA_coll_hcoll_enable": "0"}
    assert variables.of_cpu({**HOST, **own}) == {**own, **variables.FIXED}


def test_ranks_find_no_toolkit_of_the_machine(
    job: MakeJob, alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: bool
) -> None:
    """Neither nvcc, ninja and a compiler on PATH nor the toolkit's folder, nor asserts and warnings of -O and -W."""
    for name in ("nvcc", "ninja", "c++"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    for name, value in {**HOST, "CUDA_HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "warnoptions", ["error"])
    assert shutil.which("nvcc")

    with Supervisor(preload=()) as supervisor:
        outcome = supervisor.run(job("describe", world_size=1, fresh=fresh))

    described = outcome.ranks[0].value
    assert described["environment"].keys() & HOST.keys() == set()
    assert described["tools"] == {"nvcc": None, "ninja": None, "c++": None}
    assert described["flags"] == {"optimize": 0, "warnoptions": []}
