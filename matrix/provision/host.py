"""The capabilities of this machine that a plan depends on."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from matrix.catalog.failure import Level
from matrix.catalog.model import Catalog
from matrix.catalog.versions import NONE
from matrix.planning.requirements import BaseOffer, Gpu, MachineOffer, unmet
from matrix.provision.nvidia import devices
from matrix.provision.nvidia.cuda import Cuda
from matrix.provision.nvidia.nvml import Nvml
from matrix.verdicts.planned import Planned
from matrix.verdicts.reason import Lack

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


class ExecutionSite(Protocol):
    """Where cases run: this machine, or a cluster (matrix.execution.slurm)."""

    def lack(self, catalog: Catalog, item: Planned, offer: BaseOffer) -> Lack | None:
        """Return what a case requires and its base or the site does not offer, None where it can run."""

    def capabilities(self, level: Level) -> dict[str, Any]:
        """Return what a verdict at `level` depends on; part of the cache key."""


@dataclass(frozen=True)
class Host:
    """The number of GPUs that the kernel driver lists, its version ("none" without one), the processor architecture.

    `problem` is the reason why NVML did not report them, `memory` the bytes that processes may take, None if unknown.
    `user_mode` queries the user-mode driver, which decides which GPUs a process can use.
    """

    listed: int
    driver: str
    machine: str
    problem: str = ""
    memory: int | None = None
    user_mode: Callable[[], Cuda] = field(default=devices.user_mode, compare=False)

    def lack(self, catalog: Catalog, item: Planned, offer: BaseOffer) -> Lack | None:
        """Return what a case requires and its base or this machine does not offer, None where it can run."""
        return unmet(catalog, item, offer, self.offers(item.level))

    def offers(self, level: Level) -> MachineOffer:
        """Return what this machine offers; its GPUs, which takes seconds on the first call, at level gpu only."""
        if level is not Level.GPU:
            return MachineOffer(None, self.driver, self.memory)
        if not self.listed and self.driver == NONE:
            return MachineOffer((), self.driver, self.memory, self.problem)
        cuda = self.user_mode()
        gpus = tuple(Gpu(one.uuid, one.name, one.sm, one.multicast, one.exclusive) for one in cuda.gpus)
        return MachineOffer(gpus, self.driver, self.memory, cuda.problem or self._hidden(len(gpus)))

    def _hidden(self, shown: int) -> str:
        selected = os.environ.get(VISIBLE)
        if selected is None or shown >= self.listed:
            return ""
        return f"{VISIBLE} is {selected!r}; the kernel driver lists {self.listed}"

    def capabilities(self, level: Level) -> dict[str, Any]:
        """Return what a verdict at `level` depends on; part of the cache key."""
        return {"machine": self.machine, **({"gpus": self.listed, "driver": self.driver} if level is Level.GPU else {})}


def look(proc: Path = Path("/proc"), management: Callable[[], Nvml | None] = devices.management) -> Host:
    """Return the capabilities of this machine. `management` queries NVML where /proc has none: WSL, some containers.

    Neither torch nor NVML is required; an NVML that hangs costs devices.ANSWER_S, once.
    """
    folder = proc / "driver" / "nvidia" / "gpus"
    driver, listed = driver_of(proc), len(list(folder.iterdir())) if folder.is_dir() else None
    nvml = (management() if driver is None or listed is None else None) or Nvml()
    listed = len(nvml.gpus) if listed is None else listed
    return Host(listed, driver or nvml.driver or NONE, platform.machine(), nvml.problem, memory_of(proc))


def driver_of(proc: Path = Path("/proc")) -> str | None:
    """Return the kernel driver's version from /proc, None where it is missing."""
    version = proc / "driver" / "nvidia" / "version"
    found = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", version.read_text()) if version.is_file() else None
    return found[1] if found else None


def memory_of(proc: Path = Path("/proc")) -> int | None:
    """Return the memory of this machine in bytes, None where /proc does not report it."""
    facts = proc / "meminfo"
    found = re.search(r"^MemTotal: +(\d+) kB$", facts.read_text(), re.MULTILINE) if facts.is_file() else None
    return int(found[1]) * 1024 if found else None
