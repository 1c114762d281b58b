"""The description of one job on a set of ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from matrix.ground.catalog.failure import LAUNCHERS
from matrix.ground.catalog.limits import NO_LIMITS, Limits
from matrix.ground.errors import MatrixError

DEVICES: Final = ("cpu", "cuda")
# What a job holds from when its ranks are ready until their end; it yields variables that are added to theirs.
Admission = Callable[[], AbstractContextManager[Mapping[str, str]]]


@dataclass(frozen=True)
class RankJob:
    """One call of `target` on `world_size` ranks, each its own process. Raises MatrixError for an invalid job.

    `target` is "package.module:function", or "FOLDER/module.py:function" in a failure's folder. The function is
    called with (rank: Rank, **kwargs) and returns JSON or None. `stand_ins`, `clones`, `backend` and `checkpoint` are
    passed to the Rank.
    `path` lists overlay directories, which come first on sys.path of every rank before it imports the target.
    `hidden` are packages of the base that ranks can't import.
    `env` is added to each rank's environment (variables.py). A variable that a preloaded package
    reads at its import (e.g. a thread count) has an effect only with `fresh`.
    `deadline_s` counts from the start of the first rank. `log_dir` receives rank-N.log and, for stopped ranks,
    rank-N.stacks.
    `limits` are set before the target is imported; if one can't be set, the outcome is `unavailable`.
    `fresh` starts a new interpreter per rank instead of a fork of the preloaded one.
    `launcher` is "torchrun", which only sets its environment variables, or "mpirun", Open MPI's launcher, whose ranks
    are always fresh.
    """

    target: str
    kwargs: Mapping[str, Any]
    world_size: int
    path: tuple[str, ...]
    env: Mapping[str, str]
    deadline_s: float
    log_dir: Path
    fresh: bool = False
    device: str = "cpu"
    limits: Limits = NO_LIMITS
    launcher: str = "torchrun"
    hidden: tuple[str, ...] = ()
    stand_ins: Mapping[str, Any] = field(default_factory=dict)
    clones: Mapping[str, str] = field(default_factory=dict)
    backend: str = "gloo"
    checkpoint: Path = Path()

    def __post_init__(self) -> None:
        module, _, function = self.target.rpartition(":")
        names = [Path(module).stem] if module.endswith(".py") else module.split(".")
        if not (function.isidentifier() and all(name.isidentifier() for name in names)):
            expected = "package.module:function, or FOLDER/module.py:function"
            raise MatrixError("a job's target names no function", got=self.target, expected=expected)
        if self.world_size < 1:
            raise MatrixError("a job needs at least one rank", got=f"world_size {self.world_size}", expected=">= 1")
        if not self.deadline_s > 0:
            raise MatrixError("a job's deadline must be positive", got=f"{self.deadline_s} s", expected="> 0 s")
        if self.device not in DEVICES:
            raise MatrixError("unknown device of a job", got=self.device, expected=" or ".join(DEVICES))
        if self.launcher not in LAUNCHERS:
            raise MatrixError("unknown launcher of a job", got=self.launcher, expected=" or ".join(LAUNCHERS))
        try:
            json.dumps(dict(self.kwargs))
        except (TypeError, ValueError) as error:
            raise MatrixError(
                f"the arguments of {self.target} can't be passed to another process",
                got=error,
                expected="JSON values",
            ) from error
