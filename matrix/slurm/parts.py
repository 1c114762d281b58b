"""How a run is cut for Slurm: what each case needs of a node, and which cases share an array task. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from matrix.outcome import Level
from matrix.planned import Planned
from matrix.versions import NONE

T = TypeVar("T")

# Cases that share a task. A task takes 1.5 s to start without torch and 5 to 8 s with it, a case 0.05 s, 5 s and 10 s
# (two busy cores): so the start stays below a fifth. A case that fails costs its peers nothing, one that kills its task
# costs them a second task.
TOGETHER: Final = {Level.CONTRACT: 100, Level.CPU: 8, Level.GPU: 4}
READ_S: Final = 5.0  # the most that a case of level contract was seen to take is 0.4 s
START_S: Final = 600.0  # room for a task to lay its overlays, which may have to be copied first
RUNS: Final = 2  # a red case is run once more in fresh interpreters


@dataclass(frozen=True)
class Needs:
    """What the cases of an array share: the base they run on and what they need of a node.

    `driver` is a branch ("535"), "" for any; `cpus` is at most what the largest node has.
    """

    base: str
    level: Level
    gpus: int
    driver: str
    cpus: int

    @property
    def options(self) -> tuple[str, ...]:
        """Return sbatch's options for them. A node says what driver it has by a feature: driver535."""
        return (
            f"--cpus-per-task={self.cpus}",
            *((f"--gres=gpu:{self.gpus}",) if self.gpus else ()),
            *((f"--constraint=driver{self.driver}",) if self.driver else ()),
        )


def needs(item: Planned, cpus: int) -> Needs:
    """Return what a case needs; `cpus` are those of the largest node. Without a GPU no driver plays a part."""
    on_gpu = item.level is Level.GPU
    driver = item.cell.driver.split(".")[0] if on_gpu and item.cell.driver != NONE else ""
    ranks = 1 if item.level is Level.CONTRACT else item.ranks
    return Needs(item.cell.base, item.level, item.gpus if on_gpu else 0, driver, max(1, min(ranks, cpus)))


def arrays(
    items: Iterable[Planned], cpus: int, longest: int, *, alone: bool = False
) -> list[tuple[Needs, list[list[str]]]]:
    """Return the arrays to submit: what each needs, and the keys of each of its tasks, at most `longest` tasks.

    Cases stay in their order, so those that share overlays share tasks. `alone` gives each case a task of its own.
    """
    groups: dict[Needs, list[str]] = {}
    for item in items:
        groups.setdefault(needs(item, cpus), []).append(item.key)
    made = []
    for wanted, keys in groups.items():
        tasks = cut(keys, 1 if alone else TOGETHER[wanted.level])
        made += [(wanted, part) for part in cut(tasks, longest)]
    return made


def cut(items: Sequence[T], most: int) -> list[list[T]]:
    """Return the items in lists of at most `most`, as even as they can be."""
    count = math.ceil(len(items) / most)
    bounds = [len(items) * place // count for place in range(count + 1)]
    return [list(items[low:high]) for low, high in itertools.pairwise(bounds)]


def minutes(wanted: Needs, cases: int, deadline_s: float) -> int:
    """Return the time limit of a task, which no case that keeps its own deadline can reach."""
    each = READ_S if wanted.level is Level.CONTRACT else RUNS * deadline_s
    return math.ceil((START_S + cases * each) / 60)
