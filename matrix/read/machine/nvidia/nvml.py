"""NVML, the management library that comes with the kernel driver: its version, the GPUs and their NVLinks.

Codes and functions are from nvml.h; all have been there since 2018 (R410).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from matrix.ground.catalog.machine import Gpu, Nvml
from matrix.read.machine.nvidia.cuda import dotted

LIBRARY: Final = "libnvidia-ml.so.1"
TEXT_BYTES: Final = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE; the driver's version takes 80
# Hints by the text of nvmlErrorString.
HINTS: Final = {
    "Driver/library version mismatch": "the driver was updated while its kernel module was loaded; reload it or reboot",
    "Driver Not Loaded": "the kernel module is not loaded: modprobe nvidia, then see dmesg",
}
MOST_LINKS: Final = 36  # NVML_NVLINK_MAX_LINKS; 18 up to Hopper


def there(library: Callable[[str], Any] = ctypes.CDLL) -> str:
    """Return why the library can't be loaded, "" if it can. Loading takes under 1 ms and does not access the driver."""
    try:
        library(LIBRARY)
    except OSError as error:
        return str(error)  # the text names the library
    return ""


def look(library: Callable[[str], Any] = ctypes.CDLL) -> Iterator[Nvml]:
    """Query NVML; `library` loads it. Yields the facts so far before each call that may hang, then all."""
    if problem := there(library):
        yield Nvml(problem=problem)
        return
    yield Nvml(asking="nvmlInit")
    nvml = library(LIBRARY)
    nvml.nvmlErrorString.restype = ctypes.c_char_p
    if code := nvml.nvmlInit_v2():
        yield Nvml(problem=f"nvmlInit returned {_name(nvml, code)}")
        return
    text, number, count = ctypes.create_string_buffer(TEXT_BYTES), ctypes.c_int(), ctypes.c_uint()
    report = Nvml()
    if not nvml.nvmlSystemGetDriverVersion(text, TEXT_BYTES):
        report = replace(report, driver=text.value.decode())
    if not nvml.nvmlSystemGetCudaDriverVersion(ctypes.byref(number)):
        report = replace(report, cuda=dotted(number.value))
    yield replace(report, asking="nvmlDeviceGetCount")
    if code := nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        yield replace(report, problem=f"nvmlDeviceGetCount returned {_name(nvml, code)}")
        return
    yield replace(report, gpus=tuple(_gpu(nvml, index) for index in range(count.value)))


def _gpu(nvml: Any, index: int) -> Gpu:
    device, active = ctypes.c_void_p(), ctypes.c_int()
    name = ctypes.create_string_buffer(TEXT_BYTES)
    if code := nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)):
        return Gpu(problem=_name(nvml, code))
    nvml.nvmlDeviceGetName(device, name, TEXT_BYTES)
    # The call fails for a link that the GPU does not have.
    up = [
        bool(active.value)
        for link in range(MOST_LINKS)
        if not nvml.nvmlDeviceGetNvLinkState(device, link, ctypes.byref(active))
    ]
    return Gpu(name.value.decode(), links=len(up), up=sum(up))


def _name(nvml: Any, code: int) -> str:
    text = (nvml.nvmlErrorString(code) or str(code).encode()).decode()
    return f"{text}: {HINTS[text]}" if text in HINTS else text
