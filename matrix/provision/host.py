"""What this machine has, as far as a plan depends on it. Every capability answers (yes or no, reason)."""

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
        """Return the kernel driver's version, "none" where there is none or not one alone."""

    def can_run(self, planned: Planned) -> tuple[bool, str]:
        """Say whether the place has what the case needs, and if not, what it needs."""

    def capabilities(self, level: Level) -> dict[str, Any]:
        """Return what a verdict at `level` depends on; part of the cache key."""


@dataclass(frozen=True)
class Host:
    """GPUs as the kernel driver lists them, the driver's version ("none" without one), the processor architecture.

    `problem` is why NVML, asked for them, did not tell.
    """

    gpus: int
    driver: str
    machine: str
    problem: str = ""

    def can_run(self, planned: Planned) -> tuple[bool, str]:
        """Say whether this machine has what the case needs, and if not, what it needs."""
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
    """Look at this machine. `management` asks NVML where /proc does not tell: under WSL, in some containers.

    torch is not needed, nor is NVML; one that hangs or crashes costs devices.ANSWER_S, once.
    """
    folder = proc / "driver" / "nvidia" / "gpus"
    driver, gpus = driver_of(proc), len(list(folder.iterdir())) if folder.is_dir() else None
    told = (management() if driver is None or gpus is None else None) or Nvml()
    gpus = len(told.gpus) if gpus is None else gpus
    return Host(gpus, driver or told.driver or NONE, platform.machine(), told.problem)


def driver_of(proc: Path = Path("/proc")) -> str | None:
    """Return the kernel driver's version as /proc tells it, None where it does not."""
    version = proc / "driver" / "nvidia" / "version"
    found = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", version.read_text()) if version.is_file() else None
    return found[1] if found else None
