"""How much memory ranks may take: set before their body is imported, so that no case can take the machine down.

A limit that can't be set (LackError) is what this machine lacks: the body does not run, the case is unavailable.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matrix.kit.rank import LackError
from matrix.provision import kernel


def impose(
    order: Mapping[str, Any],
    *,
    set_limit: Callable[[int, tuple[int, int]], None] = resource.setrlimit,
    mount_shm: Callable[[int], None] = kernel.private_shm,
) -> None:
    """Put this process under the limits of an order (matrix.execution.ranks.rank_spec.rank_spec). Raises LackError."""
    try:
        if order["memory_group"]:
            (Path(order["memory_group"]) / "cgroup.procs").write_text("0", encoding="ascii")  # 0: who writes
    except OSError as error:
        raise LackError(f"a rank can't join a memory cgroup here: {error}") from None
    try:
        if order["shm"] is not None:
            mount_shm(order["shm"])
    except OSError as error:
        raise LackError(f"a rank can't have a /dev/shm of its own here: {error}") from None
    try:
        if order["address_space"] is not None:
            set_limit(resource.RLIMIT_AS, (order["address_space"],) * 2)
    except (OSError, ValueError, OverflowError) as error:
        raise LackError(f"no cap on the address space (RLIMIT_AS) can be set here: {error}") from None
