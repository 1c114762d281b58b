"""What is to be run on a set of ranks, and what each rank is told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from matrix.catalog.failure import LAUNCHERS
from matrix.catalog.limits import NO_LIMITS, Limits
from matrix.errors import MatrixError

DEVICES: Final = ("cpu", "cuda")


@dataclass(frozen=True)
class RankJob:
    """One call of `target` on `world_size` ranks, each its own process. Raises MatrixError for a job that cannot be.

    `target` is "package.module:function", or "FOLDER/module.py:function" of a failure's folder; the function gets
    (rank: Rank, **kwargs) and returns JSON or None. `stand_ins` and `clones` are the Rank's.
    `path` holds overlay directories, put first on sys.path in every rank before the target is imported.
    `hidden` are packages that ranks find absent: the base has them, and they play no part.
    `env` is added to each rank's environment; a variable that a preloaded package reads when it is imported (a thread
    count, say) only has effect with `fresh`.
    `deadline_s` counts from the start of the first rank. `log_dir` receives rank-N.log and, of ranks that were stopped,
    rank-N.stacks.
    `limits` are set before the target is imported; where one can't be set, the outcome is `unavailable`.
    `fresh` asks for a new interpreter per rank in place of a fork of the preloaded one.
    `launcher` says as whose the ranks start: "torchrun" gives them its environment and is no process of its own;
    "mpirun" is Open MPI's, whose ranks are always fresh.
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

    def __post_init__(self) -> None:
        module, _, function = self.target.rpartition(":")
        names = [Path(module).stem] if module.endswith(".py") else module.split(".")
        if not (function.isidentifier() and all(name.isidentifier() for name in names)):
            raise MatrixError(
                "a job's target names no function", got=self.target,
                expected="package.module:function, or FOLDER/module.py:function",
            )  # fmt: skip
        if self.world_size < 1:
            raise MatrixError("a job needs at least one rank", got=f"world_size {self.world_size}", expected=">= 1")
        if not self.deadline_s > 0:
            raise MatrixError("a job's deadline is a time ahead", got=f"{self.deadline_s} s", expected="> 0 s")
        if self.device not in DEVICES:
            raise MatrixError("a job runs on a known device", got=self.device, expected=" or ".join(DEVICES))
        if self.launcher not in LAUNCHERS:
            raise MatrixError("a job has a known launcher", got=self.launcher, expected=" or ".join(LAUNCHERS))
        try:
            json.dumps(dict(self.kwargs))
        except (TypeError, ValueError) as error:
            raise MatrixError(
                f"the arguments of {self.target} do not travel to another process",
                got=error,
                expected="values that JSON can hold",
            ) from error
