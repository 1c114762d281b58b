"""A run as arrays in Slurm's queue: what its cases request of the nodes, which share a task; submit, wait, cancel.

The job name, megatrix-RUN-PART, identifies the jobs of a run. All state is in the queue and in the run's folder.
"""

from __future__ import annotations

import itertools
import json
import math
import shlex
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from matrix.ground.cases import machine_requirements
from matrix.ground.cases.machine_requirements import BaseOffer, unmet
from matrix.ground.catalog.codec import decode_json, encode
from matrix.ground.catalog.failure import MIB, Case, Level
from matrix.ground.catalog.machine import Machine
from matrix.ground.catalog.model import Catalog
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.planned import Kind, Lack, Planned
from matrix.prove.execution.gpus import JOB_WAIT_S
from matrix.prove.execution.reproduction import deadline
from matrix.prove.execution.slurm.client import REST, Commands, Node, Task
from matrix.prove.provision import project
from matrix.prove.provision.bases import PYTEST_SETTINGS
from matrix.prove.provision.host import LocalSite
from matrix.prove.provision.tools import FETCH_S, Ref
from matrix.prove.store.journal import utc_now
from matrix.prove.store.paths import write_whole
from matrix.read import kernel, scratch
from matrix.read.commands import python_module

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


class ClusterSite:
    """The nodes that Slurm lists; `host` is the submitting machine. The same architecture is assumed for all."""

    def __init__(self, catalog: Catalog, host: LocalSite, commands: Commands) -> None:
        self.catalog, self.commands, self._host = catalog, commands, host
        self.nodes = commands.nodes()
        cpus, memory = (max((getattr(node, name) for node in self.nodes), default=1) for name in ("cpus", "memory"))
        self._largest = Node("", (), "", cpus, "", memory)
        self._features = sorted({feature for node in self.nodes for feature in node.features})
        self._refusal = cache(lambda request: commands.option_error(request.options))

    def lack(self, catalog: Catalog, item: Planned, offer: BaseOffer) -> Lack | None:
        """Return what a case requires and its base or every node lacks, with Slurm's error message.

        The GPUs of a node are matched where the case runs.
        """
        if lack := unmet(catalog, item, offer, Machine()):
            return lack
        away = [f"{node.name} is {node.state}" for node in self.nodes if node.away]
        nodes = "; ".join((f"features of its nodes: {', '.join(self._features) or 'none'}", *away))
        if too_old := self._branches(item)[1]:
            return Lack(Kind.DRIVER, f"{too_old}; {nodes}")
        request = self.request(item)
        if not (refusal := self._refusal(request)):
            return None
        options = " ".join(option for option in request.options if not option.startswith("--cpus"))
        text = f"needs {options or request.options[0]}; Slurm: {refusal}; {nodes}"
        return Lack(Kind.GPUS if request.gpus else Kind.NODE, text)

    def capabilities(self, level: Level) -> dict[str, Any]:
        """Return the capabilities of the submitting machine that a verdict at `level` depends on."""
        return self._host.capabilities(level)

    def request(self, item: Planned) -> ResourceRequest:
        """Return the request of a case."""
        case = self.catalog.failure(item.failure).case_named(item.case) if item.reproducible else None
        return needs(item, case, self._largest, self._branches(item)[0])

    def _branches(self, item: Planned) -> tuple[tuple[str, ...], str]:
        """Return the driver branches for a case (empty: any), and why no node has one, or ""."""
        return machine_requirements.runnable(self.catalog, item, machine_requirements.driver_branches(self._features))


# Seconds without a reply from Slurm after which the submitter gives up; the jobs continue. A restarted controller
# replies within a minute.
SILENCE_S: Final = 600.0
# Seconds for cancelled tasks to stop: Slurm's KillWait is 30 s by default.
CANCEL_S: Final = 60.0
FOLDER: Final = "slurm"  # in the run's folder: the array specs and the output of the tasks
# The nodes share the folder, and are neither this machine nor children of the submitter.
SETTINGS: Final = {**PYTEST_SETTINGS, "PYTHONDONTWRITEBYTECODE": "1", kernel.PARENT: "", scratch.VARIABLE: ""}


@dataclass(frozen=True)
class Polling:
    """How the queue and the journals are watched: every `seconds`, since neither can notify another machine.

    squeue takes 5 ms with 20 tasks in the queue (two busy cores, Slurm 22.05).
    """

    seconds: float = 2.0
    sleep: Callable[[float], None] = time.sleep

    def wait(self) -> None:
        """Wait until the next look."""
        self.sleep(self.seconds)


class Queue:
    """The jobs of the run in `folder`; progress and problems are appended to `log`."""

    def __init__(self, folder: Path, commands: Commands, polling: Polling, log: Path) -> None:
        self.folder, self.name = folder, f"megatrix-{folder.name}-"
        self._commands, self._polling, self._log = commands, polling, log
        self.parts = folder / FOLDER
        self.parts.mkdir(exist_ok=True)
        self.silence_s = SILENCE_S
        self._parts: dict[str, ArraySpec] = {}
        self._ended: dict[str, Task] = {}
        self._before = {task.id for task in self.tasks() if not task.live}  # submitted by an earlier process

    def submit(
        self, part: ArraySpec, resources: ResourceRequest, python: Path, environ: Mapping[str, str], name: str = ""
    ) -> None:
        """Submit an array, whose tasks run with `python`. Without a name it has the next number."""
        name = name or f"{len(list(self.parts.glob('[0-9]*.json'))):04d}"
        path = self.parts / f"{name}.json"
        write_whole(path, json.dumps(encode(part)) + "\n")
        options = (
            f"--job-name={self.name}{name}",
            f"--array=0-{len(part.tasks) - 1}",
            f"--chdir={project.folder()}",
            f"--output={self.parts}/{name}-%a.log",
            "--open-mode=append",
            "--requeue",
            f"--time={minutes(part, resources, deadline(environ.get('MEGATRIX_DEADLINE', '')))}",
            *resources.options,
        )
        # exec makes the step daemon the parent of the task, so that the task ends with it.
        task = python_module(python, "matrix.prove.execution.slurm.task", str(path), folder=project.folder())
        script = f"#!/bin/sh\nexec {shlex.join(task)}\n"
        settings = {
            **environ,
            **SETTINGS,
            "MEGATRIX_RUN": str(self.folder),
            "MEGATRIX_BASE": resources.base,
            "MEGATRIX_OVERLAYS": str(self.parts / f"overlays-{resources.base}.json"),
        }
        number = self._commands.submit(options, script, settings)
        self.note(f"{self.name}{name}: job {number}, {len(part.tasks)} tasks")

    def part_name(self, task: Task) -> str:
        """Return the name of a task's array."""
        return task.name.removeprefix(self.name)

    def keys(self, task: Task) -> list[str]:
        """Return the case keys of a task."""
        return [*self._part(task).tasks[task.index]]

    def tasks(self) -> list[Task]:
        """Return the run's tasks in the queue; tasks that squeue prints in one line are returned one by one.

        Ended tasks are kept, because the queue drops them after MinJobAge (300 s by default). Retries for SILENCE_S
        while the controller does not reply, then raises MatrixError.
        """
        listed = self._listed()
        apart = {task.id for task in listed}
        tasks = []
        for task in listed:
            if task.index == REST:
                cancelled = (replace(task, index=index) for index in range(len(self._part(task).tasks)))
                tasks += [element for element in cancelled if element.id not in apart]
            else:
                tasks.append(task)
        self._ended |= {task.id: task for task in tasks if not task.live}
        current = {task.id for task in tasks}
        return [*tasks, *(task for task in self._ended.values() if task.id not in current)]

    def _listed(self) -> list[Task]:
        start = time.monotonic()
        while True:
            try:
                return self._commands.tasks(self.name)
            except MatrixError as error:
                if time.monotonic() - start > self.silence_s:
                    raise
                self.note(error.brief)
                self._polling.wait()

    def _part(self, task: Task) -> ArraySpec:
        name = self.part_name(task)
        if name not in self._parts:
            self._parts[name] = decode_json(ArraySpec, (self.parts / f"{name}.json").read_text("utf-8"))
        return self._parts[name]

    def live(self) -> list[Task]:
        """Return the tasks that may still run, and cancel those that only a person can start."""
        tasks = [task for task in self.tasks() if task.live]
        stuck = [task for task in tasks if task.stuck]
        for task in stuck:
            self.note(f"{task.id}: cancelled, because only a person can start it: {task.reason}")
        self._commands.cancel([task.id for task in stuck])
        return tasks

    def cancelled(self) -> set[str]:
        """Return the cases of the tasks that were cancelled since this object was made."""
        tasks = [task for task in self.tasks() if task.id not in self._before]
        return {key for task in tasks if task.state == "CANCELLED" for key in self.keys(task)}

    def ends(self) -> dict[str, str]:
        """Return for each case how its last task ended; a task without cases is listed under its array's name."""
        return {
            name: task.end
            for task in sorted(self.tasks(), key=lambda task: int(task.job))
            for name in self.keys(task) or [self.part_name(task)]
        }

    def wait(self, look: Callable[[], None], names: Collection[str] | None = None) -> None:
        """Wait until the queue has no task (of the arrays `names`, if given); call `look` at each poll."""
        while any(names is None or self.part_name(task) in names for task in self.live()):
            look()
            self._polling.wait()

    def cancel(self) -> None:
        """Cancel the tasks left in the queue and wait until they have stopped, at most CANCEL_S.

        If the controller does not reply, the tasks continue and the log names the jobs to cancel.
        """
        self.silence_s = 0.0
        end = time.monotonic() + CANCEL_S
        try:
            self._commands.cancel(list(dict.fromkeys(task.job for task in self.live())))
            while self.live() and time.monotonic() < end:
                self._polling.wait()
        except MatrixError as error:
            self.note(f"not cancelled: {error.brief}; cancel the jobs whose name starts with {self.name}")

    def note(self, text: str) -> None:
        """Add a line to the engine's log."""
        with self._log.open("a", encoding="utf-8") as file:
            file.write(f"{utc_now()} {text}\n")
