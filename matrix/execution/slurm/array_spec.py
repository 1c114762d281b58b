"""How a run is cut for Slurm: what each case needs of a node, which cases share an array task, and what one is told.

Pure.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeVar

from matrix.catalog.failure import Level
from matrix.planning.planned import Planned
from matrix.provision.pyxis import FETCH_S
from matrix.provision.tools import Ref

T = TypeVar("T")

# Cases that share a task. A task takes 1.5 s to start without torch and 5 to 8 s with it, a case 0.05 s, 5 s and 10 s
# (two busy cores): so the start stays below a fifth. A case that fails costs its peers nothing, one that kills its task
# costs them a second task.
TOGETHER: Final = {Level.CONTRACT: 100, Level.CPU: 8, Level.GPU: 4}
READ_S: Final = 5.0  # the most that a case of level contract was seen to take is 0.4 s
START_S: Final = 600.0  # room for a task to lay its overlays, which may have to be copied first
RUNS: Final = 2  # a red case is run once more in fresh interpreters


@dataclass(frozen=True)
class ResourceRequest:
    """What the cases of an array share: the base they run on and what they need of a node.

    `drivers` are branches ("535") of which any will do, none for any at all; `cpus` is at most what the largest node
    has.
    """

    base: str
    level: Level
    gpus: int
    drivers: tuple[str, ...]
    cpus: int

    @property
    def options(self) -> tuple[str, ...]:
        """Return sbatch's options for them. A node says what driver it has by a feature: driver535."""
        return (
            f"--cpus-per-task={self.cpus}",
            *((f"--gres=gpu:{self.gpus}",) if self.gpus else ()),
            *((f"--constraint={'|'.join(f'driver{one}' for one in self.drivers)}",) if self.drivers else ()),
        )


@dataclass(frozen=True)
class ArraySpec:
    """What an array is told: the keys of each of its tasks, and the features of the nodes by name.

    On a base that is an image also `image`, and the `digest` that its overlays were made for. A task without keys is
    there to tell what the image holds.
    """

    tasks: Sequence[Sequence[str]]
    nodes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    image: Ref | None = None
    digest: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as its file holds it."""
        return {**vars(self), "image": asdict(self.image) if self.image else None}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> ArraySpec:
        """Return what `to_json` told."""
        return cls(**{**told, "image": Ref(**told["image"]) if told["image"] else None})


def needs(item: Planned, cpus: int, drivers: tuple[str, ...]) -> ResourceRequest:
    """Return what a case needs; `cpus` are those of the largest node, `drivers` the branches that run its base."""
    on_gpu = item.level is Level.GPU
    ranks = 1 if item.level is Level.CONTRACT else item.ranks
    return ResourceRequest(item.cell.base, item.level, item.gpus if on_gpu else 0, drivers, max(1, min(ranks, cpus)))


def arrays(
    items: Iterable[Planned], wanted: Callable[[Planned], ResourceRequest], longest: int, *, alone: bool = False
) -> list[tuple[ResourceRequest, list[list[str]]]]:
    """Return the arrays to submit: what each needs, and the keys of each of its tasks, at most `longest` tasks.

    Cases stay in their order, so those that share overlays share tasks. `alone` gives each case a task of its own.
    """
    groups: dict[ResourceRequest, list[str]] = {}
    for item in items:
        groups.setdefault(wanted(item), []).append(item.key)
    made = []
    for need, keys in groups.items():
        tasks = cut(keys, 1 if alone else TOGETHER[need.level])
        made += [(need, part) for part in cut(tasks, longest)]
    return made


def cut(items: Sequence[T], most: int) -> list[list[T]]:
    """Return the items in lists of at most `most`, as even as they can be."""
    count = math.ceil(len(items) / most)
    bounds = [len(items) * place // count for place in range(count + 1)]
    return [list(items[low:high]) for low, high in itertools.pairwise(bounds)]


def minutes(part: ArraySpec, wanted: ResourceRequest, deadline_s: float) -> int:
    """Return the time limit of an array's tasks, which no case that keeps its own deadline can reach."""
    cases, each = max(map(len, part.tasks)), READ_S if wanted.level is Level.CONTRACT else RUNS * deadline_s
    start = FETCH_S if part.image else START_S
    return math.ceil((start + cases * each) / 60)
