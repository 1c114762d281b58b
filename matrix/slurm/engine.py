"""The engine that hands a run to Slurm and gathers what its tasks wrote. It holds nothing that the queue does not.

What ties a run to its jobs is their name, megatrix-RUN-ARRAY: a submitter that dies takes nothing along, and the next
one (`--resume`) finds in the queue what still runs and in the journals what is done.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from containers import environments
from containers.overlays import Overlays, default_root
from matrix import configuration, provision
from matrix.catalog import Catalog
from matrix.content import ROOT
from matrix.engine import Ending, Engine, work_folder
from matrix.environments import base_name
from matrix.errors import MatrixError
from matrix.host import Host
from matrix.judge import judge
from matrix.outcome import Level, Outcome, OutcomeKind
from matrix.planned import Planned
from matrix.relay import Sender
from matrix.reproduction import Surroundings, make_record
from matrix.session import deadline, provisions, reproduce_line
from matrix.slurm.commands import REST, STUCK, Commands, Task
from matrix.slurm.parts import Needs, arrays, minutes, needs
from matrix.versions import NONE
from reports import journal, night
from reports.files import write_whole

# Seconds between two looks at the queue and the journals: nothing tells of either across machines. squeue takes 5 ms
# with 20 tasks in the queue (two busy cores, Slurm 22.05).
LOOK_S: Final = 2.0
# Seconds without an answer of Slurm after which the submitter gives up; the jobs go on. A controller that is started
# again is back within a minute.
SILENCE_S: Final = 600.0
# Seconds that cancelled tasks get to stop: Slurm's KillWait is 30 s, unless the site has another.
CANCEL_S: Final = 60.0
FOLDER: Final = "slurm"  # in the run's folder: what each array works off, and what its tasks printed
# What toxfile.py sets for a cell, and no bytecode: nodes share the folder.
SETTINGS: Final = {
    "PYTHONUNBUFFERED": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "NO_VCS_VERSION": "1",
}


class Slurm:
    """Runs bases that tox makes as array jobs. `maker` makes their environments, in a folder that the nodes share."""

    def __init__(
        self,
        catalog: Catalog,
        here: Host,
        maker: Engine,
        commands: Commands,
        *,
        environ: Mapping[str, str] = os.environ,
        look_s: float = LOOK_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._catalog, self._here, self._maker, self._commands = catalog, here, maker, commands
        self._environ, self._look_s, self._sleep = environ, look_s, sleep
        self._nodes = commands.nodes()
        self._cpus = max((node.cpus for node in self._nodes), default=1)
        self._refused: dict[Needs, str] = {}

    def lacks(self, base: str) -> str:
        """Return why nothing runs on the base here, "" for one that tox makes."""
        made = base in {one.id for one in self._catalog.made}
        return "" if made else f"{base} is an image; no engine runs images on Slurm yet"

    @property
    def driver(self) -> str:
        """Return "none": each node has its own."""
        return NONE

    def can_run(self, planned: Planned) -> tuple[bool, str]:
        """Say whether some node could run the case, and if not, what it needs and what Slurm says to that."""
        if not planned.test:
            return False, "the catalog has no reproduction of it yet"
        wanted = needs(planned, self._cpus)
        if wanted not in self._refused:
            self._refused[wanted] = self._commands.refuses(wanted.options)
        said = self._refused[wanted]
        if not said:
            return True, ""
        asked = " ".join(option for option in wanted.options if not option.startswith("--cpus"))
        features = sorted({feature for node in self._nodes for feature in node.features})
        return False, f"needs {asked or wanted.options[0]}; Slurm: {said}; features of its nodes: {', '.join(features)}"

    def capabilities(self, level: Level) -> dict[str, Any]:
        """Return what a verdict at `level` depends on, as the machine that submits has it."""
        return self._here.capabilities(level)

    def run(self, bases: Sequence[str], environ: Mapping[str, str], log: Path) -> Ending:
        """Submit what is left, gather results as they come, and return when no task of the run is in the queue.

        What a task left undone, unless it was cancelled, is given a second one, each case alone: a case that kills its
        task takes no other along. After Ctrl-C the run's tasks are cancelled.
        """
        folder = Path(environ["MEGATRIX_RUN"])
        work = Run(folder, self._commands, self._look_s, self._sleep, log)
        sender = Sender(environ["MEGATRIX_RELAY"], lambda: None)
        told = set(journal.read(folder).results)

        def look() -> None:
            for key, record in journal.read(folder).results.items():
                if key not in told:
                    told.add(key)
                    sender.send(record)

        try:
            made = self._make(bases, environ, log)
            bases = [base for base in bases if base not in made.refused]
            for alone in (False, True):
                # The queue is asked before the journals: what ends in between counts as alive, and is waited for.
                taken = {key for task in work.live() for key in work.keys(task)} | work.cancelled()
                left = [item for item in self._left(folder, bases) if item.key not in taken]
                for wanted, tasks in arrays(left, self._cpus, self._commands.longest(), alone=alone):
                    self._submit(work, wanted, tasks, environ)
                work.wait(look)
            if lost := self._left(folder, bases):
                self._say_what_is_lost(work, lost)
        except BaseException:
            work.cancel()
            raise
        finally:
            look()
            sender.close()
        return Ending(made.status or (1 if self._left(folder, bases) else 0), made.refused)

    def _make(self, bases: Sequence[str], environ: Mapping[str, str], log: Path) -> Ending:
        """Make the environments and overlays, here, where there is a network; without the former a base is refused."""
        folder = Path(environ["MEGATRIX_RUN"])
        ending = self._maker.run(bases, environ, log)
        refused = {}
        overlays, told = Overlays(default_root(self._environ)), configuration.load(self._environ)
        for base in bases:
            around = environments.at(work_folder(self._environ) / base_name(base))
            if around is None:
                refused[base] = f"tox made no environment of {base}: what it said is in {log}"
                continue
            provided = provisions(self._left(folder, [base]), around, told, self._python(base), overlays)
            (folder / FOLDER).mkdir(exist_ok=True)
            path = folder / FOLDER / f"overlays-{base}.json"
            provision.write(path.with_suffix(".part"), provided)
            path.with_suffix(".part").replace(path)  # a task of an earlier submitter may be about to read it
        return Ending(ending.status, refused)

    def _submit(self, work: Run, wanted: Needs, tasks: list[list[str]], environ: Mapping[str, str]) -> None:
        part = work.write(tasks, {node.name: node.features for node in self._nodes})
        limit = minutes(wanted, max(map(len, tasks)), deadline(self._environ.get("MEGATRIX_DEADLINE", "")))
        options = (
            f"--job-name={work.name}{part.stem}",
            f"--array=0-{len(tasks) - 1}",
            f"--chdir={ROOT}",
            f"--output={part.parent}/{part.stem}-%a.log",
            "--open-mode=append",
            "--requeue",
            f"--time={limit}",
            *wanted.options,
        )
        settings = {
            **{key: value for key, value in self._environ.items() if not key.startswith("TOX_")},
            **SETTINGS,
            "MEGATRIX_RUN": environ["MEGATRIX_RUN"],
            "MEGATRIX_BASE": wanted.base,
            "MEGATRIX_OVERLAYS": str(part.parent / f"overlays-{wanted.base}.json"),
        }
        # exec: the step daemon is the parent of the task, which notices when it is gone.
        python = self._python(wanted.base)
        script = f"#!/bin/sh\nexec {shlex.join([str(python), '-m', 'matrix.slurm.task', str(part)])}\n"
        work.say(f"{work.name}{part.stem}: job {self._commands.submit(options, script, settings)}, {len(tasks)} tasks")

    def _python(self, base: str) -> Path:
        return work_folder(self._environ) / base_name(base) / "bin" / "python"

    def _left(self, folder: Path, bases: Sequence[str]) -> list[Planned]:
        done = journal.read(folder).results
        planned = map(Planned.from_json, night.plan(folder))
        return [item for item in planned if item.cell.base in bases and item.key not in done]

    def _say_what_is_lost(self, work: Run, lost: Iterable[Planned]) -> None:
        """Keep for each case without a result what became of the task that had it: it is not reached, no verdict."""
        ends = work.ends()
        with journal.Journal.new(work.folder) as kept:
            for item in lost:
                outcome = Outcome(OutcomeKind.NOT_REACHED, ends.get(item.key, "Slurm no longer knows its task"))
                failure = self._catalog.failure(item.failure)
                where = Surroundings(reproduce=reproduce_line(item), run=work.folder.name)
                kept.result(make_record(item, outcome, judge(failure, item.expectation, outcome), where, ""))


class Run:
    """The jobs of one run, by the names that they have in the queue."""

    def __init__(
        self, folder: Path, commands: Commands, look_s: float, sleep: Callable[[float], None], log: Path
    ) -> None:
        self.folder, self.name = folder, f"megatrix-{folder.name}-"
        self._commands, self._look_s, self._sleep, self._log = commands, look_s, sleep, log
        self.patience_s = SILENCE_S
        self._parts: dict[str, list[list[str]]] = {}
        self._before = {task.id for task in self.tasks() if not task.live}  # of an earlier submitter

    def write(self, tasks: list[list[str]], nodes: Mapping[str, Sequence[str]]) -> Path:
        """Write what an array works off; return the file, whose name is the array's."""
        parts = self.folder / FOLDER
        path = parts / f"{len(list(parts.glob('[0-9]*.json'))):04d}.json"
        write_whole(path, json.dumps({"tasks": tasks, "nodes": nodes}) + "\n")
        return path

    def keys(self, task: Task) -> list[str]:
        """Return the cases of a task."""
        return self._part(task)[task.index]

    def tasks(self) -> list[Task]:
        """Return the run's tasks as the queue has them, those that it has in one line one by one.

        A controller that is away is waited for, SILENCE_S long; then MatrixError is raised.
        """
        told = self._answer()
        apart = {task.id for task in told}
        found = []
        for task in told:
            rest = [replace(task, index=index) for index in range(len(self._part(task)))] if task.index == REST else []
            found += [one for one in rest if one.id not in apart] if rest else [task]
        return found

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

    def _part(self, task: Task) -> list[list[str]]:
        name = task.name.removeprefix(self.name)
        if name not in self._parts:
            self._parts[name] = json.loads((self.folder / FOLDER / f"{name}.json").read_text("utf-8"))["tasks"]
        return self._parts[name]

    def live(self) -> list[Task]:
        """Return the tasks that may still run; those that wait for what will not come are cancelled."""
        tasks = [task for task in self.tasks() if task.live]
        stuck = [task for task in tasks if task.reason in STUCK]
        for task in stuck:
            self.say(f"{task.id}: cancelled, since it waits for a person: {task.reason}")
        self._commands.cancel([task.id for task in stuck])
        return tasks

    def cancelled(self) -> set[str]:
        """Return the cases of tasks that somebody cancelled since we came."""
        tasks = [task for task in self.tasks() if task.id not in self._before]
        return {key for task in tasks if task.state == "CANCELLED" for key in self.keys(task)}

    def ends(self) -> dict[str, str]:
        """Return for each case how its last task ended, in words."""
        tasks = sorted(self.tasks(), key=lambda task: int(task.job))
        return {
            key: f"Slurm task {task.id} ended {task.state} on {task.node or 'no node'}"
            for task in tasks
            for key in self.keys(task)
        }

    def wait(self, look: Callable[[], None]) -> None:
        """Wait until no task is left in the queue, calling `look` every time."""
        while self.live():
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
            file.write(f"{journal.utc_now()} {text}\n")
