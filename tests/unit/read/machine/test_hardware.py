"""What a machine has, from /proc and NVML."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from matrix.ground.catalog.machine import Gpu, Machine, Nvml
from matrix.read.machine.hardware import look

DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\nGCC version:  gcc\n"


def written(proc: Path, version: str = DRIVER, gpus: tuple[str, ...] = ()) -> Path:
    """Write a /proc with a driver; return it."""
    (proc / "driver" / "nvidia" / "gpus").mkdir(parents=True)
    for address in gpus:
        (proc / "driver" / "nvidia" / "gpus" / address).mkdir()
    (proc / "driver" / "nvidia" / "version").write_text(version)
    return proc


def no_library() -> None:
    """Stand for devices.management without NVML: return None."""


def test_memory_is_read_from_proc(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       24000000 kB\nMemFree: 1 kB\n")
    assert look(tmp_path, no_library).memory == 24_000_000 * 1024


def unexpected() -> Nvml:
    raise AssertionError("NVML was queried")


def test_a_machine_without_a_driver_has_no_gpus(tmp_path: Path) -> None:
    assert look(tmp_path, no_library) == Machine("none", 0, architecture=platform.machine())


def test_gpus_and_driver_are_read_from_proc(tmp_path: Path) -> None:
    proc = written(tmp_path, gpus=("0000:17:00.0", "0000:65:00.0"))
    assert look(proc, unexpected) == Machine("535.129.03", 2, architecture=platform.machine())


def test_the_open_kernel_module_is_a_driver_too(tmp_path: Path) -> None:
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build  (dvs-builder)\n"
    assert look(written(tmp_path, version), unexpected).driver == "550.54.14"


@pytest.mark.parametrize("version", ["", "unknown\n"])
def test_without_proc_nvml_is_queried(tmp_path: Path, version: str) -> None:
    if version:
        (tmp_path / "driver" / "nvidia").mkdir(parents=True)
        (tmp_path / "driver" / "nvidia" / "version").write_text(version)
    nvml = Nvml("470.161.03", "11.4", (Gpu("A800", links=8, up=8), Gpu("A800", links=8, up=8)))
    assert look(tmp_path, lambda: nvml) == Machine("470.161.03", 2, nvml=nvml, architecture=platform.machine())


def test_a_crashed_nvml_is_a_host_without_gpus(tmp_path: Path) -> None:
    nvml = Nvml(problem="nvmlInit crashed: SIGSEGV")
    assert look(tmp_path, lambda: nvml) == Machine("none", 0, nvml=nvml, architecture=platform.machine())
