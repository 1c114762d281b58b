"""What the body of a rank is given, and how it says that the machine lacks something."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class LackError(Exception):
    """What a job needs and this machine does not have; a body may raise it, too."""


@dataclass(frozen=True)
class Rank:
    """What the body of a rank gets as its first argument.

    `init_method` is for torch.distributed.init_process_group: a file:// store, so that no port is fought over.
    `workdir` is shared by the job's ranks and removed after the job.
    """

    rank: int
    world_size: int
    device: str
    init_method: str
    workdir: Path
