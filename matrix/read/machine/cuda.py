"""The user-mode driver, libcuda: its version, its file, and the GPUs that it shows."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from matrix.ground.catalog.machine import Cuda, Gpu

LIBRARY: Final = "libcuda.so.1"
# CUdevice_attribute of cuda.h.
MAJOR, MINOR, MULTICAST, COMPUTE_MODE, MULTIPROCESSORS = 75, 76, 132, 20, 16
EXCLUSIVE: Final = 3  # CU_COMPUTEMODE_EXCLUSIVE_PROCESS
NAME_BYTES: Final = 256
NOT_INITIALIZED: Final = 3  # CUDA_ERROR_NOT_INITIALIZED
MAPS: Final = Path("/proc/self/maps")
# Hints for errors of cuInit: 802 from cuda.h, 803 and 804 from matrix/ground/catalog/facts/drivers.toml.
HINTS: Final = {
    "CUDA_ERROR_NO_DEVICE": "no GPU was given to this container, or CUDA_VISIBLE_DEVICES hides them",
    "CUDA_ERROR_SYSTEM_NOT_READY": "a daemon of the driver is not running; with NVSwitch: nvidia-fabricmanager",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "this user-mode driver does not fit the kernel driver",
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": "compat packages are for GPUs of data centers only",
}


def look(library: Callable[[str], Any] = ctypes.CDLL) -> Iterator[Cuda]:
    """Query the driver library; `library` loads it. Yields the facts so far before a call that may hang, then all.

    That call is cuInit: it waits for GPUs that fell off the bus.
    """
    yield Cuda(asking=f"loading {LIBRARY}")
    try:
        driver = library(LIBRARY)
    except OSError as error:
        yield Cuda(problem=str(error))  # the text names the library
        return
    number = ctypes.c_int()
    report = Cuda(library=_file())
    if code := driver.cuDriverGetVersion(ctypes.byref(number)):
        yield replace(report, problem=f"cuDriverGetVersion returned {code}")
        return
    report = replace(report, version=dotted(number.value))
    yield replace(report, asking="cuInit")
    yield replace(report, **_gpus(driver))


def initialised(library: Callable[[str], Any] = ctypes.CDLL, maps: Path = MAPS) -> bool:
    """Return whether cuInit was called in this process. CUDA does not work in processes that it forks afterwards."""
    path = _file(maps)
    return path != LIBRARY and library(path).cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != NOT_INITIALIZED


def dotted(number: int) -> str:
    """Return the text of a version number of CUDA's libraries: 12.4 for 12040."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _gpus(driver: Any) -> dict[str, Any]:
    if code := driver.cuInit(0):
        return {"problem": f"cuInit returned {_name(driver, code)}"}
    count = ctypes.c_int()
    if code := driver.cuDeviceGetCount(ctypes.byref(count)):
        return {"problem": f"cuDeviceGetCount returned {_name(driver, code)}"}
    gpus = tuple(_gpu(driver, index) for index in range(count.value))
    return {"gpus": gpus, "problem": "" if gpus else "the driver shows no GPU"}


def _gpu(driver: Any, index: int) -> Gpu:
    device, size = ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(NAME_BYTES)
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDeviceGetName(name, NAME_BYTES, device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(size), device)
    sm = f"{_attribute(driver, MAJOR, device)}.{_attribute(driver, MINOR, device)}"
    multicast, mode = bool(_attribute(driver, MULTICAST, device)), _attribute(driver, COMPUTE_MODE, device)
    gpu = Gpu(name.value.decode(), sm, size.value, multicast, _uuid(driver, device), mode == EXCLUSIVE)
    return replace(gpu, multiprocessors=_attribute(driver, MULTIPROCESSORS, device))


def _uuid(driver: Any, device: ctypes.c_int) -> str:
    """Return the UUID; the second version of the call (CUDA 11.4) returns that of the part of a GPU in MIG mode."""
    from uuid import UUID  # 3 ms, of which a machine without GPUs has no use

    whole, part = (ctypes.create_string_buffer(16) for _ in range(2))
    driver.cuDeviceGetUuid(whole, device)
    second_version = getattr(driver, "cuDeviceGetUuid_v2", None)
    if second_version is None or second_version(part, device):
        part = whole
    return f"{'GPU' if part.raw == whole.raw else 'MIG'}-{UUID(bytes=part.raw)}"


def _attribute(driver: Any, attribute: int, device: ctypes.c_int) -> int:
    """Return the attribute; 0 where the driver is too old to have it."""
    value = ctypes.c_int()
    return 0 if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device) else value.value


def _name(driver: Any, code: int) -> str:
    """Return the name of the error, with a hint where there is one."""
    text = ctypes.c_char_p()
    name = str(code) if driver.cuGetErrorName(code, ctypes.byref(text)) or not text.value else text.value.decode()
    return f"{name}: {HINTS[name]}" if name in HINTS else name


def _file(maps: Path = MAPS) -> str:
    """Return the path of the loaded library, links resolved; its name where none is loaded."""
    lines = maps.read_text(errors="replace").splitlines() if maps.is_file() else []
    return next((line.split(maxsplit=5)[-1] for line in lines if "/libcuda.so" in line), LIBRARY)
