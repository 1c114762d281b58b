"""This machine as a site of cases: what a plan may use of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from matrix.ground.cases.machine_requirements import BaseOffer, unmet
from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.machine import Cuda, Machine
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.versions import NONE
from matrix.ground.verdicts.planned import Lack, Planned
from matrix.read.machine import hardware
from matrix.read.machine.installed import nvcc_version

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


class ExecutionSite(Protocol):
    """Where cases run: this machine, or a cluster (matrix.prove.execution.slurm)."""

    def lack(self, catalog: Catalog, item: Planned, offer: BaseOffer) -> Lack | None:
        """Return what a case requires and its base or the site does not offer, None where it can run."""

    def capabilities(self, level: Level) -> dict[str, Any]:
        """Return what a verdict at `level` depends on; part of the cache key."""


@dataclass(frozen=True)
class LocalSite:
    """This machine, where cases run. `user_mode` queries the user-mode driver; `machine` is known without it."""

    machine: Machine
    user_mode: Callable[[], Cuda] = field(default=hardware.user_mode, compare=False)

    def lack(self, catalog: Catalog, item: Planned, offer: BaseOffer) -> Lack | None:
        """Return what a case requires and its base or this machine does not offer, None where it can run."""
        return unmet(catalog, item, offer, self.offers(item.level))

    def offers(self, level: Level) -> Machine:
        """Return what this machine offers; its GPUs, which takes seconds on the first call, at level gpu only."""
        machine = self.machine
        if level is not Level.GPU:
            return machine
        if not machine.listed and machine.driver == NONE:
            return replace(machine, cuda=Cuda(problem=machine.nvml.problem if machine.nvml else ""))
        machine = replace(machine, nvcc=machine.nvcc or nvcc_version())
        cuda = self.user_mode()
        selected = os.environ.get(VISIBLE)
        if not cuda.problem and selected is not None and len(cuda.gpus) < (machine.listed or 0):
            hidden = f"{VISIBLE} is {selected!r}; the kernel driver lists {machine.listed}"
            cuda = replace(cuda, problem=hidden)
        return replace(machine, cuda=cuda)

    def capabilities(self, level: Level) -> dict[str, Any]:
        """Return what a verdict at `level` depends on; part of the cache key."""
        gpus = {"gpus": self.machine.listed, "driver": self.machine.driver} if level is Level.GPU else {}
        return {"machine": self.machine.architecture, **gpus}


def look() -> LocalSite:
    """Return this machine."""
    return LocalSite(hardware.look())
