"""The capabilities of this machine, and the cases that it can run."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.catalog.failure import Level
from matrix.provision.host import Host, look
from matrix.provision.nvidia.nvml import Card, Nvml
from tests.unit.catalogs import catalog, failure, planned

DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\nGCC version:  gcc\n"
BARE, SERVER = Host(0, "none", "x86_64"), Host(2, "535.129.03", "x86_64")
CASE = planned(catalog(failure()))


def on_gpus(gpus: int, driver: str = "none") -> object:
    return replace(CASE, level=Level.GPU, gpus=gpus, cell=replace(CASE.cell, driver=driver))


@pytest.mark.parametrize(
    ("host", "case", "answer"),
    [
        (BARE, CASE, (True, "")),
        (BARE, replace(CASE, reproducible=False), (False, "the catalog has no reproduction of it yet")),
        (BARE, on_gpus(1), (False, "needs 1 GPU; host has 0")),
        (BARE, on_gpus(2), (False, "needs 2 GPUs; host has 0")),
        (SERVER, on_gpus(2), (True, "")),
        (SERVER, on_gpus(8), (False, "needs 8 GPUs; host has 2")),
        (SERVER, on_gpus(1, "535"), (True, "")),
        (SERVER, on_gpus(1, "535.86"), (True, "")),
        (SERVER, on_gpus(1, "470.161.03"), (False, "needs driver 470.161.03; host has 535.129.03")),
    ],
)  # fmt: skip
def test_a_host_reports_what_is_missing(host: Host, case: object, answer: tuple[bool, str]) -> None:
    assert answer == host.can_run(case)  # type: ignore[arg-type]


def test_gpus_matter_at_level_gpu_only() -> None:
    assert SERVER.capabilities(Level.CPU) == {"machine": "x86_64"}
    assert SERVER.capabilities(Level.GPU) == {"machine": "x86_64", "gpus": 2, "driver": "535.129.03"}


def test_a_failing_nvml_is_part_of_the_reason() -> None:
    silent = replace(BARE, problem="nvmlInit did not return in 30 s")
    assert silent.can_run(on_gpus(1)) == (False, "needs 1 GPU; host has 0 (nvmlInit did not return in 30 s)")  # type: ignore[arg-type]


def written(proc: Path, version: str = DRIVER, gpus: tuple[str, ...] = ()) -> Path:
    """Write a /proc with a driver; return it."""
    (proc / "driver" / "nvidia" / "gpus").mkdir(parents=True)
    for address in gpus:
        (proc / "driver" / "nvidia" / "gpus" / address).mkdir()
    (proc / "driver" / "nvidia" / "version").write_text(version)
    return proc


def no_library() -> None:
    """Stand for devices.management without NVML: return None."""


def unexpected() -> Nvml:
    raise AssertionError("NVML was queried")


def test_a_machine_without_a_driver_has_no_gpus(tmp_path: Path) -> None:
    assert look(tmp_path, no_library) == Host(0, "none", platform.machine())


def test_gpus_and_driver_are_read_from_proc(tmp_path: Path) -> None:
    proc = written(tmp_path, gpus=("0000:17:00.0", "0000:65:00.0"))
    assert look(proc, unexpected) == Host(2, "535.129.03", platform.machine())


def test_the_open_kernel_module_is_a_driver_too(tmp_path: Path) -> None:
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build  (dvs-builder)\n"
    assert look(written(tmp_path, version), unexpected).driver == "550.54.14"


@pytest.mark.parametrize("version", ["", "unknown\n"])
def test_without_proc_nvml_is_queried(tmp_path: Path, version: str) -> None:
    if version:
        (tmp_path / "driver" / "nvidia").mkdir(parents=True)
        (tmp_path / "driver" / "nvidia" / "version").write_text(version)
    nvml = Nvml("470.161.03", "11.4", (Card("A800", 8, 8), Card("A800", 8, 8)))
    assert look(tmp_path, lambda: nvml) == Host(2, "470.161.03", platform.machine())


def test_a_crashed_nvml_is_a_host_without_gpus(tmp_path: Path) -> None:
    found = look(tmp_path, lambda: Nvml(problem="nvmlInit crashed: SIGSEGV"))
    assert found == Host(0, "none", platform.machine(), "nvmlInit crashed: SIGSEGV")
