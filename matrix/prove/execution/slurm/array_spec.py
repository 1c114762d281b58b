"""Divide a run into Slurm arrays: the resources each case needs, the cases of each array task, and the array spec.

Pure functions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from matrix.ground.catalog.failure import MIB, Case, Level
from matrix.ground.verdicts.planned import Planned
from matrix.prove.execution.gpus import JOB_WAIT_S
from matrix.prove.execution.slurm.client import Node
from matrix.prove.provision.pyxis import FETCH_S
from matrix.prove.provision.tools import Ref

T = TypeVar("T")

# Cases that share a task. A task starts in 1.5 s without torch and in 5 to 8 s with it; a case takes 0.05 s, 5 s and
# 10 s (two busy cores). The start therefore stays below a fifth of the task. A case that fails does not affect the
# others; a case that kills its task makes the others run in a second task.
TOGETHER: Final = {Level.CONTRACT: 100, Level.CPU: 8, Level.GPU: 4}
READ_S: Final = 5.0  # the longest case of level contract that was measured took 0.4 s
START_S: Final = 600.0  # for a task to lay its overlays, which it may have to copy first
CPUS: Final = 4  # for each rank on a GPU: its own, NCCL's and its DataLoader's processes
MEMORY: Final = 8 * 1024  # MiB for each rank on a GPU: libraries, CUDA's context and pinned buffers; not measured
RUNS: Final = 2  # a red case runs once more in new interpreters


@dataclass(frozen=True)
class ResourceRequest:
    """The resources that the cases of an array share: the base and the requirements on a node.

    `drivers` are alternative branches ("535"); empty accepts any driver. `cpus` is at most that of the largest node.
    `memory` is in MiB, 0 for the site's default. `deadline` is the cases' own in seconds, 0 for the usual one.
    """

    base: str
    level: Level
    gpus: int
    drivers: tuple[str, ...]
    cpus: int
    memory: int = 0
    deadline: int = 0

    @property
    def options(self) -> tuple[str, ...]:
        """Return the sbatch options of the request. A node declares its driver as a feature: driver535."""
        return (
            f"--cpus-per-task={self.cpus}",
            *((f"--gres=gpu:{self.gpus}",) if self.gpus else ()),
            *((f"--mem={self.memory}M",) if self.memory else ()),
            *((f"--constraint={'|'.join(f'driver{driver}' for driver in self.drivers)}",) if self.drivers else ()),
        )


@dataclass(frozen=True)
class ArraySpec:
    """The contents of an array's file: the keys of each of its tasks, and the features of the nodes by name.

    For a base that is an image also `image`, and the `digest` that its overlays were made for. A task without keys
    reports the contents of the image.
    """

    tasks: tuple[tuple[str, ...], ...]
    nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    image: Ref | None = None
    digest: str = ""


def needs(item: Planned, case: Case | None, largest: Node, drivers: tuple[str, ...]) -> ResourceRequest:
    """Return the request of a planned case; `drivers` are the branches that run its base.

    `largest` has the processors and the memory of the largest nodes, `case` is None where there is no reproduction.
    """
    ranks = 1 if item.level is Level.CONTRACT else item.ranks
    deadline = case.deadline if case and item.level is not Level.CONTRACT else 0
    if item.level is not Level.GPU:
        cpus = max(1, min(ranks, largest.cpus))
        return ResourceRequest(item.cell.base, item.level, 0, drivers, cpus, deadline=deadline)
    cpus = max(1, min(ranks * CPUS, largest.cpus))
    limit = ((case.limits.memory or 0) if case else 0) // MIB
    memory = ranks * MEMORY + limit if limit else min(ranks * MEMORY, largest.memory)
    memory = memory if largest.memory > 1 else 0  # the site does not state it
    return ResourceRequest(item.cell.base, item.level, item.gpus, drivers, cpus, memory, deadline)


def arrays(
    items: Iterable[Planned], request: Callable[[Planned], ResourceRequest], longest: int, *, alone: bool = False
) -> list[tuple[ResourceRequest, list[list[str]]]]:
    """Return the arrays to submit: the request of each, and the keys of each of its tasks, at most `longest` tasks.

    Cases keep their order, so that cases with the same overlays share tasks. `alone` gives each case its own task.
    """
    groups: dict[ResourceRequest, list[str]] = {}
    for item in items:
        groups.setdefault(request(item), []).append(item.key)
    return [
        (resources, tasks)
        for resources, keys in groups.items()
        for tasks in cut(cut(keys, 1 if alone else TOGETHER[resources.level]), longest)
    ]


def cut(items: Sequence[T], most: int) -> list[list[T]]:
    """Return the items in lists of at most `most`, whose lengths differ by at most one."""
    count = math.ceil(len(items) / most)
    bounds = [len(items) * index // count for index in range(count + 1)]
    return [list(items[low:high]) for low, high in itertools.pairwise(bounds)]


def minutes(part: ArraySpec, request: ResourceRequest, deadline_s: float) -> int:
    """Return the time limit of an array's tasks; cases that keep their own deadline stay below it."""
    case_s = READ_S if request.level is Level.CONTRACT else RUNS * max(deadline_s, request.deadline)
    case_s += RUNS * JOB_WAIT_S if request.gpus else 0.0
    start_s = FETCH_S if part.image else START_S
    return math.ceil((start_s + max(map(len, part.tasks)) * case_s) / 60)
