"""Memory limits of a rank, set before it imports its body, so that no case exhausts the memory of the machine.

If a limit can't be set (LackError), the body does not run and the case is unavailable.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matrix.kit.rank import LackError
from matrix.provision import kernel


def impose(
    spec: Mapping[str, Any],
    *,
    set_limit: Callable[[int, tuple[int, int]], None] = resource.setrlimit,
    mount_shm: Callable[[int], None] = kernel.private_shm,
) -> None:
    """Set the limits of a rank spec (matrix.execution.ranks.rank_spec) on this process. Raises LackError."""
    try:
        if spec["memory_group"]:
            (Path(spec["memory_group"]) / "cgroup.procs").write_text("0", encoding="ascii")  # 0: the writing process
    except OSError as error:
        raise LackError(f"a rank can't join a memory cgroup: {error}") from None
    try:
        if spec["shm"] is not None:
            mount_shm(spec["shm"])
    except OSError as error:
        raise LackError(f"a rank can't mount its own /dev/shm: {error}") from None
    try:
        if spec["address_space"] is not None:
            set_limit(resource.RLIMIT_AS, (spec["address_space"],) * 2)
    except (OSError, ValueError, OverflowError) as error:
        raise LackError(f"the address space (RLIMIT_AS) can't be limited: {error}") from None
