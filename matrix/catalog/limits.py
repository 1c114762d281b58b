"""How much memory the ranks of a case may take (matrix.execution.ranks.limits sets it)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

from matrix.catalog.schema import Size
from matrix.errors import MatrixError

MIB: Final = 2**20  # bytes
GIB: Final = 2**30  # bytes


@dataclass(frozen=True)
class Limits:
    """In bytes, None = no limit. Raises MatrixError for a size below 1.

    `address_space` is each process's own (RLIMIT_AS): what it maps, libraries included, may be much more than the
    memory it holds. `memory` is for all ranks of the job and what they start, together (a memory cgroup). `shm` gives
    each rank a /dev/shm of its own, of that size.
    """

    address_space: Size | None = None
    memory: Size | None = None
    shm: Size | None = None

    def __post_init__(self) -> None:
        for name, size in asdict(self).items():
            if size is not None and size < 1:
                raise MatrixError("a limit has a size", got=f"{name} {size}", expected="bytes, or None")


NO_LIMITS: Final = Limits()
