"""The user-mode driver, asked by itself: neither torch nor a CUDA context is made."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from matrix.doctor.facts import Cuda, Gpu

LIBRARY: Final = "libcuda.so.1"
# CUdevice_attribute of cuda.h.
MAJOR, MINOR, MULTICAST = 75, 76, 132
NAME_BYTES: Final = 256


def look(library: Callable[[str], Any] = ctypes.CDLL) -> Cuda:
    """Ask the driver library for its version and its GPUs; `library` loads it."""
    try:
        driver = library(LIBRARY)
    except OSError as error:
        return Cuda(problem=f"{LIBRARY} can't be loaded: {error}")
    number = ctypes.c_int()
    if code := driver.cuDriverGetVersion(ctypes.byref(number)):
        return Cuda(problem=f"cuDriverGetVersion says {code}", library=_file())
    version = f"{number.value // 1000}.{number.value % 1000 // 10}"
    if code := driver.cuInit(0):
        return Cuda(version, _file(), problem=f"cuInit says {_name(driver, code)}")
    count = ctypes.c_int()
    if code := driver.cuDeviceGetCount(ctypes.byref(count)):
        return Cuda(version, _file(), problem=f"cuDeviceGetCount says {_name(driver, code)}")
    gpus = tuple(_gpu(driver, place) for place in range(count.value))
    return Cuda(version, _file(), gpus, "" if gpus else "the driver shows no GPU")


def _gpu(driver: Any, place: int) -> Gpu:
    device, size = ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(NAME_BYTES)
    driver.cuDeviceGet(ctypes.byref(device), place)
    driver.cuDeviceGetName(name, NAME_BYTES, device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(size), device)
    sm = f"{_attribute(driver, MAJOR, device)}.{_attribute(driver, MINOR, device)}"
    return Gpu(name.value.decode(), sm, size.value, bool(_attribute(driver, MULTICAST, device)))


def _attribute(driver: Any, attribute: int, device: ctypes.c_int) -> int:
    """Return the attribute; 0 where the driver is too old to know it."""
    value = ctypes.c_int()
    return 0 if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device) else value.value


def _name(driver: Any, code: int) -> str:
    text = ctypes.c_char_p()
    return str(code) if driver.cuGetErrorName(code, ctypes.byref(text)) or not text.value else text.value.decode()


def _file(maps: Path = Path("/proc/self/maps")) -> str:
    """Return the library that was loaded: its path tells the driver's version, and whether it is an image's own."""
    lines = maps.read_text(errors="replace").splitlines() if maps.is_file() else []
    return next((line.split()[-1] for line in lines if "/libcuda.so" in line), LIBRARY)
