"""The argument of a rank's body, and the exception for something that the machine lacks."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class LackError(Exception):
    """The machine lacks something that the job needs; the body of a rank may raise it, too."""


@dataclass(frozen=True)
class Rank:
    """The first argument of a rank's body.

    `init_method` is for torch.distributed.init_process_group: a file:// store, which avoids port conflicts.
    `workdir` is shared by the job's ranks and removed after the job. `stand_ins` are the arguments of
    matrix.kit.absent_packages.install, {} where the cell needs none. `clones` are the site's clones by name
    ("megatron-lm": path). `backend` is that of the process groups: nccl where each rank has its own GPU. `checkpoint`
    is the folder that the case's writer fills and its reader reads, Path() where it has no writer. `overlays` come
    first on sys.path, and `hidden` modules can't be imported: a process that a rank starts must do the same.
    """

    rank: int
    world_size: int
    device: str
    init_method: str
    workdir: Path
    stand_ins: Mapping[str, Any] = field(default_factory=dict)
    clones: Mapping[str, str] = field(default_factory=dict)
    backend: str = "gloo"
    checkpoint: Path = Path()
    overlays: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()


def renew_threads() -> None:
    """Make torch's pool of threads anew, once, in a rank that was forked from a process with torch.

    Else the first threads of its backward pass do it, all at once, and one that finds none ends the process: "Invalid
    thread pool!" (pytorch/pytorch#178535). torch 2.15.0 ended 13 of 60 comparisons of Megatron-FSDP on two busy cores.
    """
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(torch.get_num_threads())
