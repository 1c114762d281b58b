"""The jobs of one run in Slurm's queue: list them, wait for them, cancel them.

The job name, megatrix-RUN-PART, identifies the jobs of a run. All state is in the queue and in the run's folder.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from matrix.ground.catalog.codec import decode_json, encode
from matrix.ground.errors import MatrixError
from matrix.prove.execution.reproduction import deadline
from matrix.prove.execution.slurm.array_spec import ArraySpec, ResourceRequest, minutes
from matrix.prove.execution.slurm.client import REST, Commands, Task
from matrix.prove.provision import project
from matrix.prove.provision.bases import CELL_SETTINGS
from matrix.prove.store.journal import utc_now
from matrix.prove.store.paths import write_whole
from matrix.prove.store.secrets import mask_file
from matrix.read import kernel, scratch
from matrix.read.commands import python_module

# Seconds without a reply from Slurm after which the submitter gives up; the jobs continue. A restarted controller
# replies within a minute.
SILENCE_S: Final = 600.0
# Seconds for cancelled tasks to stop: Slurm's KillWait is 30 s by default.
CANCEL_S: Final = 60.0
FOLDER: Final = "slurm"  # in the run's folder: the array specs and the output of the tasks
# The nodes share the folder, and are neither this machine nor children of the submitter.
SETTINGS: Final = {**CELL_SETTINGS, "PYTHONDONTWRITEBYTECODE": "1", kernel.PARENT: "", scratch.VARIABLE: ""}


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


@dataclass(frozen=True)
class ArrayJob:
    """An array to submit: its tasks run with `python`. Without a name it has the next number."""

    part: ArraySpec
    resources: ResourceRequest
    python: Path
    name: str = ""


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

    def submit(self, job: ArrayJob, environ: Mapping[str, str]) -> None:
        """Submit an array."""
        part, resources = job.part, job.resources
        name = job.name or f"{len(list(self.parts.glob('[0-9]*.json'))):04d}"
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
        task = python_module(job.python, "matrix.prove.execution.slurm.task", str(path), folder=project.folder())
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

    def mask_logs(self) -> None:
        """Mask the secrets in the output of the tasks."""
        for path in self.parts.glob("*.log"):
            mask_file(path)
