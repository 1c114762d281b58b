"""The capabilities of this machine, and the cases that it can run."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.catalog.failure import Level
from matrix.catalog.machine import Cuda, Gpu, Machine, Nvml
from matrix.planning.machine_requirements import BaseOffer
from matrix.provision.host import LocalSite, look
from matrix.verdicts.planned import Planned
from matrix.verdicts.reason import Kind, Lack
from tests.unit.catalogs import catalog, failure, planned, values

DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\nGCC version:  gcc\n"
GPU = Gpu("H100", "9.0", 80, True, "GPU-a")
BARE = LocalSite(
    Machine("none", 0, architecture="x86_64"), user_mode=lambda: pytest.fail("the user-mode driver was queried")
)
SERVER = LocalSite(
    Machine("535.129.03", 2, architecture="x86_64", memory=64), user_mode=lambda: Cuda("12.2", gpus=(GPU, GPU))
)
KNOWN = catalog(failure())
CASE = planned(KNOWN)


def on_gpus(gpus: int, driver: str = "none") -> Planned:
    return replace(CASE, level=Level.GPU, gpus=gpus, ranks=1, cell=CASE.cell.with_(values(driver=driver)))


@pytest.mark.parametrize(
    ("host", "case", "answer"),
    [
        (BARE, CASE, None),
        (BARE, replace(CASE, reproducible=False), "the catalog has no reproduction of it yet"),
        (BARE, on_gpus(1), "needs 1 GPU; host has 0"),
        (BARE, on_gpus(2), "needs 2 GPUs; host has 0"),
        (SERVER, on_gpus(2), None),
        (SERVER, on_gpus(8), "needs 8 GPUs; host has 2"),
        (SERVER, on_gpus(1, "535"), None),
        (SERVER, on_gpus(1, "535.86"), None),
        (SERVER, on_gpus(1, "470.161.03"), "needs driver 470.161.03; host has 535.129.03"),
    ],
)  # fmt: skip
def test_a_host_reports_what_is_missing(host: LocalSite, case: Planned, answer: str | None) -> None:
    lack = host.lack(KNOWN, case, BaseOffer("torch-2.4.0"))
    assert answer == (lack and lack.text)


def test_gpus_are_those_that_cuda_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel driver lists 8, and CUDA_VISIBLE_DEVICES or the container gives one of them."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    one = replace(SERVER, machine=replace(SERVER.machine, listed=8), user_mode=lambda: Cuda("12.2", gpus=(GPU,)))
    offers = one.offers(Level.GPU)
    assert [gpu.uuid for gpu in offers.gpus or ()] == ["GPU-a"]
    assert offers.problem == "CUDA_VISIBLE_DEVICES is '3'; the kernel driver lists 8"


def test_below_level_gpu_cuda_is_not_queried() -> None:
    silent = replace(SERVER, user_mode=BARE.user_mode)
    assert (silent.offers(Level.CPU).gpus, silent.offers(Level.CPU).memory) == (None, 64)


def test_gpus_matter_at_level_gpu_only() -> None:
    assert SERVER.capabilities(Level.CPU) == {"machine": "x86_64"}
    assert SERVER.capabilities(Level.GPU) == {"machine": "x86_64", "gpus": 2, "driver": "535.129.03"}


def test_a_failing_nvml_is_part_of_the_reason() -> None:
    silent = replace(BARE, machine=replace(BARE.machine, nvml=Nvml(problem="nvmlInit did not return in 30 s")))
    lack = silent.lack(KNOWN, on_gpus(1), BaseOffer("torch-2.4.0"))
    assert lack == Lack(Kind.GPUS, "needs 1 GPU; CUDA shows 0: nvmlInit did not return in 30 s")


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
    assert look(tmp_path, no_library).machine.memory == 24_000_000 * 1024


def unexpected() -> Nvml:
    raise AssertionError("NVML was queried")


def test_a_machine_without_a_driver_has_no_gpus(tmp_path: Path) -> None:
    assert look(tmp_path, no_library).machine == Machine("none", 0, architecture=platform.machine())


def test_gpus_and_driver_are_read_from_proc(tmp_path: Path) -> None:
    proc = written(tmp_path, gpus=("0000:17:00.0", "0000:65:00.0"))
    assert look(proc, unexpected).machine == Machine("535.129.03", 2, architecture=platform.machine())


def test_the_open_kernel_module_is_a_driver_too(tmp_path: Path) -> None:
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build  (dvs-builder)\n"
    assert look(written(tmp_path, version), unexpected).machine.driver == "550.54.14"


@pytest.mark.parametrize("version", ["", "unknown\n"])
def test_without_proc_nvml_is_queried(tmp_path: Path, version: str) -> None:
    if version:
        (tmp_path / "driver" / "nvidia").mkdir(parents=True)
        (tmp_path / "driver" / "nvidia" / "version").write_text(version)
    nvml = Nvml("470.161.03", "11.4", (Gpu("A800", links=8, up=8), Gpu("A800", links=8, up=8)))
    assert look(tmp_path, lambda: nvml).machine == Machine("470.161.03", 2, nvml=nvml, architecture=platform.machine())


def test_a_crashed_nvml_is_a_host_without_gpus(tmp_path: Path) -> None:
    nvml = Nvml(problem="nvmlInit crashed: SIGSEGV")
    assert look(tmp_path, lambda: nvml).machine == Machine("none", 0, nvml=nvml, architecture=platform.machine())
