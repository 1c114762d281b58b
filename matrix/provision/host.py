"""The capabilities of this machine that a plan depends on."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from matrix.catalog.failure import Level
from matrix.catalog.versions import NONE
from matrix.planning.planned import Planned
from matrix.provision.nvidia import devices
from matrix.provision.nvidia.nvml import Nvml


class ExecutionSite(Protocol):
    """Where cases run: this machine, or a cluster (matrix.execution.slurm)."""

    @property
    def driver(self) -> str:
        """Return the kernel driver's version, "none" where there is none or more than one."""

    def can_run(self, planned: Planned) -> tuple[bool, str]:
        """Return whether the site has what the case needs, and if not, what is missing."""

    def capabilities(self, level: Level) -> dict[str, Any]:
        """Return what a verdict at `level` depends on; part of the cache key."""


@dataclass(frozen=True)
class Host:
    """The number of GPUs that the kernel driver lists, its version ("none" without one), the processor architecture.

    `problem` is the reason why NVML did not report them.
    """

    gpus: int
    driver: str
    machine: str
    problem: str = ""

    def can_run(self, planned: Planned) -> tuple[bool, str]:
        """Return whether this machine has what the case needs, and if not, what is missing."""
        if not planned.reproducible:
            return False, "the catalog has no reproduction of it yet"
        if planned.level is Level.GPU and planned.gpus > self.gpus:
            return False, f"needs {planned.gpus} GPU{'s' * (planned.gpus > 1)}; host has {self.gpus}{self._why}"
        wanted = planned.cell.driver
        if planned.level is Level.GPU and wanted != NONE and self.driver.split(".")[0] != wanted.split(".")[0]:
            return False, f"needs driver {wanted}; host has {self.driver}{self._why}"
        return True, ""

    @property
    def _why(self) -> str:
        return f" ({self.problem})" if self.problem else ""

    def capabilities(self, level: Level) -> dict[str, Any]:
        """Return what a verdict at `level` depends on; part of the cache key."""
        return {"machine": self.machine, **({"gpus": self.gpus, "driver": self.driver} if level is Level.GPU else {})}


def look(proc: Path = Path("/proc"), management: Callable[[], Nvml | None] = devices.management) -> Host:
    """Return the capabilities of this machine. `management` queries NVML where /proc has none: WSL, some containers.

    Neither torch nor NVML is required; an NVML that hangs costs devices.ANSWER_S, once.
    """
    folder = proc / "driver" / "nvidia" / "gpus"
    driver, gpus = driver_of(proc), len(list(folder.iterdir())) if folder.is_dir() else None
    nvml = (management() if driver is None or gpus is None else None) or Nvml()
    gpus = len(nvml.gpus) if gpus is None else gpus
    return Host(gpus, driver or nvml.driver or NONE, platform.machine(), nvml.problem)


def driver_of(proc: Path = Path("/proc")) -> str | None:
    """Return the kernel driver's version from /proc, None where it is missing."""
    version = proc / "driver" / "nvidia" / "version"
    found = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", version.read_text()) if version.is_file() else None
    return found[1] if found else None
