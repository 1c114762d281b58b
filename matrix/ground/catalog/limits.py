"""Memory limits of the ranks of a case (`impose` in matrix.prove.execution.ranks.rank_main sets them)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

from matrix.ground.catalog.schema import Size
from matrix.ground.errors import MatrixError

MIB: Final = 2**20  # bytes
GIB: Final = 2**30  # bytes


@dataclass(frozen=True)
class Limits:
    """Limits in bytes, None = no limit. Raises MatrixError for a size below 1.

    `address_space` applies to each process (RLIMIT_AS): its mappings, libraries included, can be much larger than the
    memory it uses. `memory` applies to all ranks of the job and their child processes together (a memory cgroup). `shm`
    gives each rank its own /dev/shm of that size.
    """

    address_space: Size | None = None
    memory: Size | None = None
    shm: Size | None = None

    def __post_init__(self) -> None:
        for name, size in asdict(self).items():
            if size is not None and size < 1:
                raise MatrixError("a limit below 1 byte", got=f"{name} {size}", expected="bytes, or None")


NO_LIMITS: Final = Limits()
