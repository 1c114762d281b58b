"""The driver library is asked through its C interface; a library made by hand answers."""

from __future__ import annotations

from typing import Any

import pytest

from matrix.doctor import cuda
from matrix.doctor.facts import GIB, Gpu


class Driver:
    """What libcuda.so.1 would answer. `refuses` gives the code that a function returns instead."""

    def __init__(self, attributes: dict[int, int], count: int = 1, **refuses: int) -> None:
        self.attributes, self.count, self.refuses = attributes, count, refuses

    def __getattr__(self, name: str) -> Any:
        answers = {
            "cuDriverGetVersion": 12040,
            "cuDeviceGetCount": self.count,
            "cuDeviceTotalMem_v2": 80 * GIB,
        }

        def function(*arguments: Any) -> int:
            if name in self.refuses:
                return self.refuses[name]
            if name == "cuDeviceGetName":
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


def test_a_driver_tells_its_version_and_its_gpus() -> None:
    found = cuda.look(lambda name: Driver({75: 9, 76: 0, 132: 1}, count=2))
    gpu = Gpu("NVIDIA H100", "9.0", 80 * GIB, multicast=True)
    assert (found.version, found.gpus, found.problem) == ("12.4", (gpu, gpu), "")


def test_a_driver_that_does_not_know_multicast_has_none() -> None:
    (gpu,) = cuda.look(lambda name: Driver({75: 8, 76: 0})).gpus
    assert (gpu.sm, gpu.multicast) == ("8.0", False)


@pytest.mark.parametrize(
    ("driver", "version", "problem"),
    [
        (Driver({}, cuDriverGetVersion=3), None, "cuDriverGetVersion says 3"),
        (Driver({}, cuInit=100), "12.4", "cuInit says CUDA_ERROR_NO_DEVICE"),
        (Driver({}, cuDeviceGetCount=100), "12.4", "cuDeviceGetCount says CUDA_ERROR_NO_DEVICE"),
        (Driver({}, cuInit=999, cuGetErrorName=1), "12.4", "cuInit says 999"),
        (Driver({}, count=0), "12.4", "the driver shows no GPU"),
    ],
)
def test_a_driver_that_shows_no_gpu_says_why(driver: Driver, version: str | None, problem: str) -> None:
    found = cuda.look(lambda name: driver)
    assert (found.version, found.gpus, found.problem) == (version, (), problem)


def test_a_machine_without_the_library_says_so() -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    assert cuda.look(missing).problem.startswith("libcuda.so.1 can't be loaded")
