"""A machine, its GPUs and its Pythons: one value each for plans, `check`, preflights and the execution of cases.

`matrix.read.machine` fills them. This module imports the standard library only and runs on Python 3.9: the
process that queries a driver, which may be any Python, builds these values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Final


@dataclass(frozen=True)
class Gpu:
    """A GPU; None is what the library that reported it does not report.

    `sm` is its compute capability ("9.0"), `memory` is in bytes, `multicast` the device attribute. `uuid` is its name
    in CUDA_VISIBLE_DEVICES, in every container: GPU-..., or MIG-... for a part of a GPU. `exclusive`: its compute mode
    allows one process at a time. `multiprocessors` is their number, 0 for an unknown one. NVML reports `links`, the
    number of its NVLinks, and how many are `up`; `problem` is the reason why nothing is known of it, for example a GPU
    that fell off the bus.
    """

    name: str = ""
    sm: str | None = None
    memory: int | None = None
    multicast: bool | None = None
    uuid: str = ""
    exclusive: bool = False
    links: int = 0
    up: int = 0
    problem: str = ""
    multiprocessors: int = 0


@dataclass(frozen=True)
class Nvml:
    """The report of NVML: the kernel driver's version, the CUDA that it supports ("12.2"), the GPUs in bus order.

    `problem` is the reason why nothing is known; `asking` is the call that has not returned yet. `silent`: the process
    that queries the library reported nothing, and `problem` is how it ended.
    """

    driver: str | None = None
    cuda: str | None = None
    gpus: tuple[Gpu, ...] = ()
    problem: str = ""
    asking: str = ""
    silent: bool = False


@dataclass(frozen=True)
class Cuda:
    """The report of the user-mode driver: the CUDA version that it offers ("12.4"), its file, and its GPUs.

    `problem` is the reason why there is no driver or no GPU; `asking` and `silent` are as in Nvml.
    """

    version: str | None = None
    library: str = ""
    gpus: tuple[Gpu, ...] = ()
    problem: str = ""
    asking: str = ""
    silent: bool = False

    @property
    def driver(self) -> str | None:
        """Return the version in the file name, libcuda.so.555.42.06; None where the name has none (WSL)."""
        match = re.fullmatch(r"libcuda\.so\.(\d{3}(?:\.\d+)+)", PurePath(self.library).name)
        return match[1] if match else None

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


COMPILED: Final = "MEGATRIX_COMPILED"  # the folder of a bundle with the extensions that were built for its torch


@dataclass(frozen=True)
class Compiled:
    """A release of Transformer Engine with its extension, built for this torch and the CUDA of that."""

    te: str
    torch: str
    cuda: str

    @classmethod
    def of(cls, te: str, torch: str, cuda: str) -> Compiled:
        """Return a build; torch 2.11.0+cu130 of its own index and PyPI's 2.11.0 are the same."""
        return cls(te, re.sub(r"\+cu\d+$", "", torch), cuda)


@dataclass(frozen=True)
class Machine:
    """A machine, as far as it is known; None is unknown.

    `driver` is the version of the kernel driver ("470.161.03"), "none" without one; `listed` the number of GPUs that
    it lists. `cuda` and `nvml` are the reports of the two libraries, None where they were not queried: the user-mode
    driver decides which GPUs a process can use. `memory`, its free part `available`, the `limit` of the job's cgroup,
    `shm` (/dev/shm) and its free part `shm_free` are in bytes. `mpirun` is the path on PATH and the first line of
    --version. `nvcc` is the CUDA version of the compiler ("13.0"), "none" without one. `compiled` is that of a bundle,
    `sources` the releases of Transformer Engine that can be built from one, None without a bundle.
    """

    driver: str | None = None
    listed: int | None = None
    cuda: Cuda | None = None
    nvml: Nvml | None = None
    architecture: str = ""
    memory: int | None = None
    available: int | None = None
    limit: int | None = None
    shm: int | None = None
    shm_free: int | None = None
    mpirun: tuple[str, str] | None = None
    nvcc: str | None = None
    compiled: tuple[Compiled, ...] = ()
    sources: frozenset[str] | None = None

    @property
    def gpus(self) -> tuple[Gpu, ...] | None:
        """Return the GPUs that CUDA shows."""
        return self.cuda.gpus if self.cuda else None

    @property
    def problem(self) -> str:
        """Return why CUDA shows fewer GPUs than the machine may have, "" for no known reason."""
        return self.cuda.problem if self.cuda else ""

    @property
    def cuda_version(self) -> str | None:
        """Return the CUDA version that the user-mode driver supports."""
        return self.cuda.version if self.cuda else None

    @property
    def sm(self) -> str | None:
        """Return the least compute capability of the GPUs."""
        reported = (gpu.sm for gpu in self.gpus or () if gpu.sm)
        return min(reported, key=lambda sm: [int(part) for part in sm.split(".")], default=None)

    @property
    def multicast(self) -> bool | None:
        """Return whether all GPUs have CUDA Multicast."""
        reported = [gpu.multicast for gpu in self.gpus or ()]
        return None if not reported or None in reported else all(reported)

    @property
    def allowed(self) -> int | None:
        """Return the bytes of memory that the processes of a job may take."""
        return self.limit or self.memory


@dataclass(frozen=True)
class PythonEnvironment:
    """A Python interpreter and its packages; None is what was not read.

    `python` is its full version, `packages` maps canonical names to versions, `features` are those of
    read/machine/installed.py that it has. `path` is its executable, never a shim, and `image` the digest of the image
    that it is in. `torch_cuda` is the CUDA that torch was built for, "none" for a build without; `torch_mpi` and
    `te_mpi` whether torch and Transformer Engine were built with MPI; `problems` are the reasons why something is
    unknown.
    """

    python: str | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    features: Sequence[str] | None = None
    path: Path | None = None
    image: str = ""
    torch_cuda: str | None = None
    torch_mpi: bool | None = None
    te_mpi: bool | None = None
    problems: tuple[str, ...] = ()

    @property
    def minor(self) -> str:
        """Return the minor version: "3.10"."""
        return ".".join((self.python or "").split(".")[:2])


@dataclass(frozen=True)
class Toolkit:
    """What a base builds with; None is unknown.

    `nvcc` is the CUDA version of the compiler ("13.0"), "none" without one. `torch` is the version of the base's torch,
    `cuda` the CUDA that it is built for, "none" for a build without.
    """

    nvcc: str | None = None
    cuda: str | None = None
    torch: str | None = None
