"""The user-mode driver, libcuda: its version, its file, and the GPUs that it shows."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, Final
from uuid import UUID

LIBRARY: Final = "libcuda.so.1"
# CUdevice_attribute of cuda.h.
MAJOR, MINOR, MULTICAST, COMPUTE_MODE = 75, 76, 132, 20
EXCLUSIVE: Final = 3  # CU_COMPUTEMODE_EXCLUSIVE_PROCESS
NAME_BYTES: Final = 256
NOT_INITIALIZED: Final = 3  # CUDA_ERROR_NOT_INITIALIZED
MAPS: Final = Path("/proc/self/maps")
# Hints for errors of cuInit: 802 from cuda.h, 803 and 804 from matrix/catalog/facts/drivers.toml.
HINTS: Final = {
    "CUDA_ERROR_NO_DEVICE": "no GPU was given to this container, or CUDA_VISIBLE_DEVICES hides them",
    "CUDA_ERROR_SYSTEM_NOT_READY": "a daemon of the driver is not running; with NVSwitch: nvidia-fabricmanager",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "this user-mode driver does not fit the kernel driver",
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": "compat packages are for GPUs of data centers only",
}


@dataclass(frozen=True)
class CudaDevice:
    """A GPU as the user-mode driver reports it; `memory` in bytes, `multicast` the device attribute.

    `uuid` is its name in CUDA_VISIBLE_DEVICES, in every container: GPU-..., or MIG-... for a part of a GPU.
    `exclusive`: its compute mode allows one process at a time.
    """

    name: str
    sm: str
    memory: int
    multicast: bool
    uuid: str = ""
    exclusive: bool = False


@dataclass(frozen=True)
class Cuda:
    """The user-mode driver: the CUDA version that it offers ("12.4"), its file, and its GPUs.

    `problem` is the reason why there is no driver or no GPU; `asking` is the call that has not returned yet. `silent`:
    the process that queries the driver reported nothing, and `problem` is how it ended.
    """

    version: str | None = None
    library: str = ""
    gpus: tuple[CudaDevice, ...] = ()
    problem: str = ""
    asking: str = ""
    silent: bool = False

    @property
    def driver(self) -> str | None:
        """Return the version in the file name, libcuda.so.555.42.06; None where the name has none (WSL)."""
        found = re.fullmatch(r"libcuda\.so\.(\d{3}(?:\.\d+)+)", PurePath(self.library).name)
        return found[1] if found else None

    def is_compat(self, kernel: str | None) -> bool | None:
        """Return whether the driver is a compat package, not the one of the kernel driver; None where it is unknown.

        Compat packages are in a folder "compat" (NVIDIA's cuda-compat). NVIDIA's container runtime mounts their files
        over those of the host; they then differ from the kernel driver in the version. After an update whose kernel
        module is not loaded yet, the host's own driver differs too, but does not start.
        """
        if "compat" in PurePath(self.library).parts:
            return True
        if self.driver is None or kernel is None:
            return None
        return False if self.driver == kernel else None if self.problem else True


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
    known = Cuda(library=_file())
    if code := driver.cuDriverGetVersion(ctypes.byref(number)):
        yield replace(known, problem=f"cuDriverGetVersion returned {code}")
        return
    known = replace(known, version=dotted(number.value))
    yield replace(known, asking="cuInit")
    yield replace(known, **_gpus(driver))


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
    gpus = tuple(_gpu(driver, place) for place in range(count.value))
    return {"gpus": gpus, "problem": "" if gpus else "the driver shows no GPU"}


def _gpu(driver: Any, place: int) -> CudaDevice:
    device, size = ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(NAME_BYTES)
    driver.cuDeviceGet(ctypes.byref(device), place)
    driver.cuDeviceGetName(name, NAME_BYTES, device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(size), device)
    sm = f"{_attribute(driver, MAJOR, device)}.{_attribute(driver, MINOR, device)}"
    multicast, mode = bool(_attribute(driver, MULTICAST, device)), _attribute(driver, COMPUTE_MODE, device)
    return CudaDevice(name.value.decode(), sm, size.value, multicast, _uuid(driver, device), mode == EXCLUSIVE)


def _uuid(driver: Any, device: ctypes.c_int) -> str:
    """Return the UUID; the second version of the call (CUDA 11.4) returns that of the part of a GPU in MIG mode."""
    whole, part = (ctypes.create_string_buffer(16) for _ in range(2))
    driver.cuDeviceGetUuid(whole, device)
    newer = getattr(driver, "cuDeviceGetUuid_v2", None)
    if newer is None or newer(part, device):
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
