"""Queries of the driver library through its C interface, with a fake library."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from matrix.ground.catalog.machine import Cuda, Gpu
from matrix.read.machine import cuda

GIB = 2**30
MAPPED = "7f02-7f03 r-xp 00000000 08:01 12  /lib/libcuda.so.1"
UUID = uuid.UUID("8f0c7f37-7a4b-4a58-9b1a-0d7c3b1f6e55")
NO_DEVICE = "CUDA_ERROR_NO_DEVICE: no GPU was given to this container, or CUDA_VISIBLE_DEVICES hides them"


class Driver:
    """A fake libcuda.so.1. `refuses` gives the error code that a function returns."""

    def __init__(self, attributes: dict[int, int], count: int = 1, **refuses: int) -> None:
        self.attributes, self.count, self.refuses, self.part = attributes, count, refuses, UUID

    def __getattr__(self, name: str) -> Any:
        answers = {
            "cuDriverGetVersion": 12040,
            "cuDeviceGetCount": self.count,
            "cuDeviceTotalMem_v2": 80 * GIB,
        }

        def function(*arguments: Any) -> int:
            if name in self.refuses:
                return self.refuses[name]
            if name in ("cuDeviceGetUuid", "cuDeviceGetUuid_v2"):
                arguments[0].raw = (self.part if name.endswith("_v2") else UUID).bytes
            elif name == "cuDeviceGetName":
                arguments[0].value = b"NVIDIA H100"
            elif name == "cuDeviceGetAttribute":
                if arguments[1] not in self.attributes:
                    return 1
                arguments[0]._obj.value = self.attributes[arguments[1]]
            elif name in answers:
                arguments[0]._obj.value = answers[name]
            elif name == "cuGetErrorName":
                arguments[1]._obj.value = b"CUDA_ERROR_NO_DEVICE"
            return 0

        return function


def last(driver: Driver) -> Cuda:
    """Return the facts after the last call."""
    *_, found = cuda.look(lambda name: driver)
    return found


def test_a_driver_reports_its_version_and_gpus() -> None:
    found = last(Driver({75: 9, 76: 0, 132: 1, 16: 132}, count=2))
    gpu = Gpu("NVIDIA H100", "9.0", 80 * GIB, multicast=True, uuid=f"GPU-{UUID}", multiprocessors=132)
    assert (found.version, found.gpus, found.problem) == ("12.4", (gpu, gpu), "")


def test_part_of_a_gpu_has_its_own_uuid() -> None:
    """In MIG mode the two calls differ; a driver before CUDA 11.4 has the first one only."""
    driver = Driver({75: 9, 76: 0})
    driver.part = uuid.UUID(int=7)
    assert last(driver).gpus[0].uuid == f"MIG-{driver.part}"
    driver.refuses = {"cuDeviceGetUuid_v2": 801}
    assert last(driver).gpus[0].uuid == f"GPU-{UUID}"


@pytest.mark.parametrize(("mode", "exclusive"), [(0, False), (3, True)])
def test_exclusive_compute_mode_is_reported(mode: int, exclusive: bool) -> None:
    assert last(Driver({75: 9, 76: 0, 20: mode})).gpus[0].exclusive is exclusive


def test_an_old_driver_has_no_multicast() -> None:
    (gpu,) = last(Driver({75: 8, 76: 0})).gpus
    assert (gpu.sm, gpu.multicast) == ("8.0", False)


@pytest.mark.parametrize(
    ("driver", "version", "problem"),
    [
        (Driver({}, cuDriverGetVersion=3), None, "cuDriverGetVersion returned 3"),
        (Driver({}, cuInit=100), "12.4", f"cuInit returned {NO_DEVICE}"),
        (Driver({}, cuDeviceGetCount=100), "12.4", f"cuDeviceGetCount returned {NO_DEVICE}"),
        (Driver({}, cuInit=999, cuGetErrorName=1), "12.4", "cuInit returned 999"),
        (Driver({}, count=0), "12.4", "the driver shows no GPU"),
    ],
)
def test_a_driver_without_gpus_has_a_reason(driver: Driver, version: str | None, problem: str) -> None:
    found = last(driver)
    assert (found.version, found.gpus, found.problem) == (version, (), problem)


def test_a_missing_library_is_reported() -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    *_, found = cuda.look(missing)
    assert found == Cuda(problem="libcuda.so.1: cannot open shared object file")


def test_facts_are_yielded_before_a_blocking_call() -> None:
    """The version is known even when the driver hangs in cuInit."""
    yielded = [(found.asking, found.version) for found in cuda.look(lambda name: Driver({}))]
    assert yielded == [("loading libcuda.so.1", None), ("cuInit", "12.4"), ("", "12.4")]


HOSTS = "/usr/lib/x86_64-linux-gnu/libcuda.so.470.161.03"
PACKAGE = "/usr/local/cuda-12.5/compat/lib.real/libcuda.so.555.42.06"


@pytest.mark.parametrize(
    ("library", "kernel", "driver", "compat"),
    [
        (HOSTS, "470.161.03", "470.161.03", False),
        (PACKAGE, "470.161.03", "555.42.06", True),
        (PACKAGE, None, "555.42.06", True),
        (HOSTS.replace("470.161.03", "555.42.06"), "470.161.03", "555.42.06", True),  # mounted over the host's
        (HOSTS, None, "470.161.03", None),
        ("/usr/lib/wsl/lib/libcuda.so.1.1", "537.13", None, None),
        ("libcuda.so.1", "535.86.10", None, None),
        ("", None, None, None),
    ],
)
def test_the_file_gives_version_and_origin(
    library: str, kernel: str | None, driver: str | None, compat: bool | None
) -> None:
    found = Cuda("12.5", library)
    assert (found.driver, found.is_compat(kernel)) == (driver, compat)


def test_a_pending_driver_update_is_no_compat_package() -> None:
    """After an update whose kernel module is not loaded, the origin is unknown."""
    updated = Cuda("12.5", "/usr/lib/libcuda.so.555.42.06", problem="cuInit returned CUDA_ERROR_SYSTEM_DRIVER_MISMATCH")
    assert updated.is_compat("535.129.03") is None


@pytest.mark.parametrize(
    ("line", "code", "expected"),
    [("", 0, False), (f"{MAPPED}\n", 3, False), (f"{MAPPED}\n", 0, True)],
)
def test_initialised_cuda_is_detected(tmp_path: Path, line: str, code: int, expected: bool) -> None:
    """A library that is not loaded was not initialised, and is not loaded to find out."""
    (tmp_path / "maps").write_text(line)
    loaded: list[str] = []

    def library(name: str) -> Driver:
        loaded.append(name)
        return Driver({}, cuDeviceGetCount=code)

    assert cuda.initialised(library, tmp_path / "maps") is expected
    assert loaded == ["/lib/libcuda.so.1"] * bool(line)


def test_the_file_is_the_mapped_one(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r--p 00000000 08:01 11                         /usr/lib/libc.so.6\n"
        "7f02-7f03 r-xp 00000000 08:01 12                         /my images/compat/libcuda.so.555.42.06\n"
    )
    assert cuda._file(maps) == "/my images/compat/libcuda.so.555.42.06"
    assert cuda._file(tmp_path / "none") == "libcuda.so.1"
