"""What this machine has: driver, GPUs, memory and its limits, and what the kernel killed; without torch."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from matrix.ground.catalog.machine import Machine, Nvml
from matrix.ground.catalog.versions import NONE
from matrix.read.machine import devices

COUNT: Final = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
COUNTS: Final = ("memory.oom_control", "memory.events")  # files of cgroup v1, v2
LIMITS: Final = ("memory.limit_in_bytes", "memory.max")  # files of cgroup v1, v2
AVAILABLE: Final = re.compile(r"^MemAvailable: +(\d+) kB$", re.MULTILINE)
MEMBERSHIP: Final = re.compile(r"^\d+:(memory|):(/.*)$", re.MULTILINE)


def oom_kills(root: Path = Path("/"), group: str = "") -> dict[str, int]:
    """Return the OOM kills by source: /proc/vmstat, cgroup v1 memory.oom_control, cgroup v2 memory.events.

    Reads this process's cgroup and, if given, the folder `group`. In a container /proc/vmstat may be missing, or count
    the kills of the host.
    """
    sources = [root / "proc/vmstat"]
    sources += [Path(group) / name for name in COUNTS if group]
    for controller, top, group_folder in memberships(root):
        folder = group_folder if group_folder.is_dir() else top  # a container may see its own group as the root
        sources.append(folder / ("memory.oom_control" if controller else "memory.events"))
    return {str(source): int(count[1]) for source in sources if (count := COUNT.search(_text(source)))}


def rise(before: Mapping[str, int], after: Mapping[str, int]) -> int:
    """Return the largest increase of a count between the two readings."""
    return max((count - before.get(source, count) for source, count in after.items()), default=0)


def available(root: Path = Path("/")) -> int | None:
    """Return the bytes available on this machine without swapping, None if the kernel does not report them."""
    size = AVAILABLE.search(_text(root / "proc/meminfo"))
    return int(size[1]) * 1024 if size else None


def allowed(memory: int, root: Path = Path("/")) -> int | None:
    """Return the limit in bytes of this process's cgroup and its parents; None if it is `memory` or more.

    In a container its own group is the topmost visible one.
    """
    limits = []
    for _, top, folder in memberships(root):
        groups = (group for group in (folder, *folder.parents) if group.is_relative_to(top))
        limits += [text for group in groups for name in LIMITS if (text := _text(group / name).strip()).isdecimal()]
    least = min(map(int, limits), default=memory)
    return least if least < memory else None


def memberships(root: Path) -> list[tuple[str, Path, Path]]:
    """Return this process's memory cgroups: the controller ("" for v2), where it is mounted, the group's folder."""
    mounts = root / "sys/fs/cgroup"
    lines = MEMBERSHIP.findall(_text(root / "proc/self/cgroup"))
    return [(controller, mounts / controller, mounts / controller / path.lstrip("/")) for controller, path in lines]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:  # missing on this kernel, or not visible in this container
        return ""


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
