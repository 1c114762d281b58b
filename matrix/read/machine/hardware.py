"""What this machine has: its driver, GPUs and memory, without torch."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from pathlib import Path

from matrix.ground.catalog.machine import Machine, Nvml
from matrix.ground.catalog.versions import NONE
from matrix.read.machine.nvidia import devices


def look(proc: Path = Path("/proc"), management: Callable[[], Nvml | None] = devices.management) -> Machine:
    """Return this machine. `management` queries NVML where /proc has no driver: WSL, some containers.

    Neither torch nor NVML is required; an NVML that hangs costs devices.ANSWER_S, once.
    """
    folder, meminfo = proc / "driver" / "nvidia" / "gpus", proc / "meminfo"
    driver, listed = driver_of(proc), len(list(folder.iterdir())) if folder.is_dir() else None
    nvml = management() if driver is None or listed is None else None
    memory = re.search(r"^MemTotal: +(\d+) kB$", meminfo.read_text(), re.MULTILINE) if meminfo.is_file() else None
    return Machine(
        driver=driver or (nvml and nvml.driver) or NONE,
        listed=listed if listed is not None else len(nvml.gpus) if nvml else 0,
        nvml=nvml,
        architecture=platform.machine(),
        memory=int(memory[1]) * 1024 if memory else None,
    )


def driver_of(proc: Path = Path("/proc")) -> str | None:
    """Return the kernel driver's version from /proc, None where it is missing."""
    version = proc / "driver" / "nvidia" / "version"
    text = version.read_text() if version.is_file() else ""
    match = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return match[1] if match else None
