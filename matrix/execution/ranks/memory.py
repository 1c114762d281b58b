"""Memory facts from the kernel: OOM kills of the machine and of a cgroup, available memory, cgroup limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

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
    for controller, path in MEMBERSHIP.findall(_text(root / "proc/self/cgroup")):
        top = root / "sys/fs/cgroup" / controller
        own = top / path.lstrip("/")
        place = own if own.is_dir() else top  # a container may see its own group as the root
        sources.append(place / ("memory.oom_control" if controller else "memory.events"))
    return {str(source): int(count[1]) for source in sources if (count := COUNT.search(_text(source)))}


def rise(before: Mapping[str, int], after: Mapping[str, int]) -> int:
    """Return the largest increase of a count between the two readings."""
    return max((count - before.get(source, count) for source, count in after.items()), default=0)


def available(root: Path = Path("/")) -> int | None:
    """Return the bytes available on this machine without swapping, None if the kernel does not report them."""
    found = AVAILABLE.search(_text(root / "proc/meminfo"))
    return int(found[1]) * 1024 if found else None


def allowed(memory: int, root: Path = Path("/")) -> int | None:
    """Return the limit in bytes of this process's cgroup and its parents; None if it is `memory` or more.

    In a container its own group is the topmost visible one.
    """
    limits = []
    for controller, path in MEMBERSHIP.findall(_text(root / "proc/self/cgroup")):
        top = root / "sys/fs/cgroup" / controller
        own = top / path.lstrip("/")
        groups = (group for group in (own, *own.parents) if group.is_relative_to(top))
        limits += [text for group in groups for name in LIMITS if (text := _text(group / name).strip()).isdecimal()]
    least = min(map(int, limits), default=memory)
    return least if least < memory else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:  # missing on this kernel, or not visible in this container
        return ""
