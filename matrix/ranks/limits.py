"""How much memory ranks may take: set before their body is imported, so that no case can take the machine down.

A limit that can't be set (LackError) is what this machine lacks: the body does not run, the case is unavailable.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from matrix.errors import MatrixError
from matrix.ranks import kernel

MIB: Final = 2**20  # bytes
GIB: Final = 2**30  # bytes


class LackError(Exception):
    """What a job needs and this machine does not have; a body may raise it, too."""


@dataclass(frozen=True)
class Limits:
    """In bytes, None = no limit. Raises MatrixError for a size below 1.

    `address_space_bytes` is each process's own (RLIMIT_AS): what it maps, libraries included, may be much more than
    the memory it holds. `memory_bytes` is for all ranks of the job and what they start, together (a memory cgroup).
    `shm_bytes` gives each rank a /dev/shm of its own, of that size.
    """

    address_space_bytes: int | None = None
    memory_bytes: int | None = None
    shm_bytes: int | None = None

    def __post_init__(self) -> None:
        for name, size in asdict(self).items():
            if size is not None and size < 1:
                raise MatrixError("a limit has a size", got=f"{name} {size}", expected="bytes, or None")


NO_LIMITS: Final = Limits()


def impose(
    order: Mapping[str, Any],
    *,
    set_limit: Callable[[int, tuple[int, int]], None] = resource.setrlimit,
    mount_shm: Callable[[int], None] = kernel.private_shm,
) -> None:
    """Put this process under the limits of an order (matrix.ranks.order.order). Raises LackError."""
    try:
        if order["memory_group"]:
            (Path(order["memory_group"]) / "cgroup.procs").write_text("0", encoding="ascii")  # 0: who writes
    except OSError as error:
        raise LackError(f"a rank can't join a memory cgroup here: {error}") from None
    try:
        if order["shm_bytes"] is not None:
            mount_shm(order["shm_bytes"])
    except OSError as error:
        raise LackError(f"a rank can't have a /dev/shm of its own here: {error}") from None
    try:
        if order["address_space_bytes"] is not None:
            set_limit(resource.RLIMIT_AS, (order["address_space_bytes"],) * 2)
    except (OSError, ValueError, OverflowError) as error:
        raise LackError(f"no cap on the address space (RLIMIT_AS) can be set here: {error}") from None
