"""The jobs of one run as Slurm's queue has them: looked at, waited for, cancelled.

What ties a run to its jobs is their name, megatrix-RUN-PART: nothing is held here that the queue and the run's folder
do not have.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Final

from matrix.errors import MatrixError
from matrix.execution.slurm.array_spec import ArraySpec
from matrix.execution.slurm.commands import REST, Commands, Task
from matrix.store.journal import utc_now
from matrix.store.paths import write_whole

# Seconds without an answer of Slurm after which the submitter gives up; the jobs go on. A controller that is started
# again is back within a minute.
SILENCE_S: Final = 600.0
# Seconds that cancelled tasks get to stop: Slurm's KillWait is 30 s, unless the site has another.
CANCEL_S: Final = 60.0
FOLDER: Final = "slurm"  # in the run's folder: what each array works off, and what its tasks printed


class Queue:
    """The jobs of the run in `folder`; `log` is told what a person should know."""

    def __init__(
        self, folder: Path, commands: Commands, look_s: float, sleep: Callable[[float], None], log: Path
    ) -> None:
        self.folder, self.name = folder, f"megatrix-{folder.name}-"
        self._commands, self._look_s, self._sleep, self._log = commands, look_s, sleep, log
        self.parts = folder / FOLDER
        self.parts.mkdir(exist_ok=True)
        self.patience_s = SILENCE_S
        self._parts: dict[str, ArraySpec] = {}
        self._ended: dict[str, Task] = {}
        self._before = {task.id for task in self.tasks() if not task.live}  # of an earlier submitter

    def write(self, part: ArraySpec, name: str = "") -> Path:
        """Write what an array works off; return the file, whose name is the array's: `name`, or the next number."""
        name = name or f"{len(list(self.parts.glob('[0-9]*.json'))):04d}"
        write_whole(self.parts / f"{name}.json", json.dumps(part.to_json()) + "\n")
        return self.parts / f"{name}.json"

    def part_name(self, task: Task) -> str:
        """Return the name of the array that a task belongs to."""
        return task.name.removeprefix(self.name)

    def keys(self, task: Task) -> list[str]:
        """Return the cases of a task."""
        return [*self._part(task).tasks[task.index]]

    def tasks(self) -> list[Task]:
        """Return the run's tasks as the queue has them, those that it has in one line one by one.

        What has ended is remembered: the queue forgets it after MinJobAge, 300 s unless the site has another. A
        controller that is away is waited for, SILENCE_S long; then MatrixError is raised.
        """
        told = self._answer()
        apart = {task.id for task in told}
        found = []
        for task in told:
            indexes = range(len(self._part(task).tasks)) if task.index == REST else ()
            rest = [replace(task, index=index) for index in indexes]
            found += [one for one in rest if one.id not in apart] if rest else [task]
        self._ended |= {task.id: task for task in found if not task.live}
        here = {task.id for task in found}
        return [*found, *(task for task in self._ended.values() if task.id not in here)]

    def _answer(self) -> list[Task]:
        heard = time.monotonic()
        while True:
            try:
                return self._commands.tasks(self.name)
            except MatrixError as error:
                if time.monotonic() - heard > self.patience_s:
                    raise
                self.say(error.brief)
                self._sleep(self._look_s)

    def _part(self, task: Task) -> ArraySpec:
        name = self.part_name(task)
        if name not in self._parts:
            self._parts[name] = ArraySpec.from_json(json.loads((self.parts / f"{name}.json").read_text("utf-8")))
        return self._parts[name]

    def live(self) -> list[Task]:
        """Return the tasks that may still run; those that wait for what will not come are cancelled."""
        tasks = [task for task in self.tasks() if task.live]
        stuck = [task for task in tasks if task.stuck]
        for task in stuck:
            self.say(f"{task.id}: cancelled, since it waits for a person: {task.reason}")
        self._commands.cancel([task.id for task in stuck])
        return tasks

    def cancelled(self) -> set[str]:
        """Return the cases of tasks that somebody cancelled since we came."""
        tasks = [task for task in self.tasks() if task.id not in self._before]
        return {key for task in tasks if task.state == "CANCELLED" for key in self.keys(task)}

    def ends(self) -> dict[str, str]:
        """Return for each case how its last task ended, in words; for a task without cases, by its array's name."""
        return {
            name: task.end
            for task in sorted(self.tasks(), key=lambda task: int(task.job))
            for name in self.keys(task) or [self.part_name(task)]
        }

    def wait(self, look: Callable[[], None], names: Collection[str] | None = None) -> None:
        """Wait until no task is left in the queue, of the arrays with these names if given; `look` every time."""
        while any(names is None or self.part_name(task) in names for task in self.live()):
            look()
            self._sleep(self._look_s)

    def cancel(self) -> None:
        """Cancel what is left in the queue and wait until it has stopped, at most CANCEL_S.

        Where the controller does not answer the tasks go on, and the log says how to cancel them.
        """
        self.patience_s = 0.0
        end = time.monotonic() + CANCEL_S
        try:
            self._commands.cancel(list(dict.fromkeys(task.job for task in self.live())))
            while self.live() and time.monotonic() < end:
                self._sleep(self._look_s)
        except MatrixError as error:
            self.say(f"not cancelled: {error.brief}; the jobs are those whose name begins with {self.name}")

    def say(self, text: str) -> None:
        """Add a line to the engine's log."""
        with self._log.open("a", encoding="utf-8") as file:
            file.write(f"{utc_now()} {text}\n")
