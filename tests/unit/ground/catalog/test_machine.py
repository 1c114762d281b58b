"""What a machine, its GPUs and its Pythons have, and what is not known of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from matrix.ground.catalog import machine as module
from matrix.ground.catalog.machine import Cuda, Gpu, Machine, PythonEnvironment

H100, A800 = Gpu("H100", "9.0", multicast=True), Gpu("A800", "8.0", multicast=False)


@pytest.mark.parametrize(
    ("cuda", "sm", "multicast"),
    [
        (None, None, None),
        (Cuda(), None, None),
        (Cuda(gpus=(H100,)), "9.0", True),
        (Cuda(gpus=(H100, A800)), "8.0", False),
        (Cuda(gpus=(Gpu(sm="10.0"), H100)), "9.0", None),  # of one GPU multicast is not known; 10.0 is more than 9.0
        (Cuda(gpus=(Gpu("H100"),)), None, None),
    ],
)
def test_the_weakest_gpu_counts(cuda: Cuda | None, sm: str | None, multicast: bool | None) -> None:
    machine = Machine(cuda=cuda)
    assert (machine.sm, machine.multicast) == (sm, multicast)
    assert machine.gpus == (cuda.gpus if cuda else None)


def test_a_missing_query_has_no_problem() -> None:
    assert (Machine().problem, Machine().cuda_version) == ("", None)
    machine = Machine(cuda=Cuda("12.4", problem="cuInit returned 999"))
    assert (machine.problem, machine.cuda_version) == ("cuInit returned 999", "12.4")


@pytest.mark.parametrize(("limit", "allowed"), [(None, 64), (16, 16)])
def test_the_limit_of_the_cgroup_counts(limit: int | None, allowed: int) -> None:
    assert Machine(memory=64, limit=limit).allowed == allowed


@pytest.mark.parametrize(
    ("library", "kernel", "problem", "compat"),
    [
        ("/usr/local/cuda/compat/lib/libcuda.so.1", "535.129.03", "", True),
        ("/lib/libcuda.so.535.129.03", "535.129.03", "", False),
        ("/lib/libcuda.so.555.42.06", "535.129.03", "", True),
        ("/lib/libcuda.so.555.42.06", "535.129.03", "cuInit returned 803", None),  # updated, not loaded yet
        ("/lib/libcuda.so.555.42.06", None, "", None),
        ("/usr/lib/wsl/lib/libcuda.so.1.1", "537.13", "", None),
    ],
)
def test_a_compat_package_is_recognised(library: str, kernel: str | None, problem: str, compat: bool | None) -> None:
    assert Cuda(library=library, problem=problem).is_compat(kernel) is compat


@pytest.mark.parametrize(("version", "minor"), [("3.10.13", "3.10"), (None, "")])
def test_a_python_has_a_minor(version: str | None, minor: str) -> None:
    assert PythonEnvironment(version).minor == minor


def test_only_the_standard_library_is_imported() -> None:
    """The process that queries a driver may be any Python, without packages."""
    code = (
        "import sys, matrix.ground.catalog.machine; "
        "print([name for name in sys.modules if name.startswith('packaging')])"
    )
    root = Path(module.__file__).parents[3]
    output = subprocess.run([sys.executable, "-S", "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"
