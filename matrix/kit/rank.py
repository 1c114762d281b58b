"""What the body of a rank is given, and how it says that the machine lacks something."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class LackError(Exception):
    """What a job needs and this machine does not have; a body may raise it, too."""


@dataclass(frozen=True)
class Rank:
    """What the body of a rank gets as its first argument.

    `init_method` is for torch.distributed.init_process_group: a file:// store, so that no port is fought over.
    `workdir` is shared by the job's ranks and removed after the job. `stand_ins` are the arguments of
    matrix.kit.absent_packages.install, {} where the cell needs none. `clones` are the site's clones by name
    ("megatron-lm": path).
    """

    rank: int
    world_size: int
    device: str
    init_method: str
    workdir: Path
    stand_ins: Mapping[str, Any] = field(default_factory=dict)
    clones: Mapping[str, str] = field(default_factory=dict)
