"""The engine that hands a run to Slurm and gathers what its tasks wrote. It holds nothing that the queue does not.

A submitter that dies takes nothing along, and the next one (`--resume`) finds in the queue what still runs and in the
journals what is done.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from matrix.catalog.failure import Level
from matrix.catalog.model import Catalog, Container, Image
from matrix.catalog.versions import NONE
from matrix.execution import inside
from matrix.execution.engine import BaseContents, Ending, Engine, pending
from matrix.execution.relay import Sender
from matrix.execution.run import not_run
from matrix.execution.session import deadline
from matrix.execution.slurm.array_spec import ArraySpec, ResourceRequest, arrays, minutes, needs
from matrix.execution.slurm.commands import Commands
from matrix.execution.slurm.image import answer, reported_contents
from matrix.execution.slurm.queue import Queue
from matrix.planning.planned import Planned
from matrix.provision import case_overlays as provision
from matrix.provision import configuration, drivers, project
from matrix.provision.host import Host
from matrix.provision.overlays import Overlays, default_root
from matrix.provision.tools import Ref
from matrix.provision.tox_environments import CELL_SETTINGS
from matrix.store import journal
from matrix.store.secrets import mask_file
from matrix.verdicts.outcome import Outcome, OutcomeKind

# Seconds between two looks at the queue and the journals: nothing tells of either across machines. squeue takes 5 ms
# with 20 tasks in the queue (two busy cores, Slurm 22.05).
LOOK_S: Final = 2.0
ASK: Final = "ask-"  # and the base: the array of one task in which a node says what an image holds
SETTINGS: Final = {**CELL_SETTINGS, "PYTHONDONTWRITEBYTECODE": "1"}  # nodes share the folder


class Slurm:
    """Runs cases as array jobs. `maker` makes what tox makes, in a folder that the nodes share.

    What an image holds, a node is asked first; the rest is the same.
    """

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
        self._features = sorted({feature for node in self._nodes for feature in node.features})
        self._refused: dict[ResourceRequest, str] = {}

    def ready(self, bases: Collection[str]) -> None:
        """Check what makes the environments; Slurm has answered already."""
        if made := [base for base in bases if not self._image(base)]:
            self._maker.ready(made)

    def lacks(self, base: str) -> str:
        """Return "": what an environment needs tox says as it makes it, what an image needs the nodes say."""
        return ""

    def installed(self, base: str) -> BaseContents | None:
        """Return what tox made; of an image nothing is known before a node was asked."""
        return None if self._image(base) else self._maker.installed(base)

    @property
    def driver(self) -> str:
        """Return "none": each node has its own."""
        return NONE

    def can_run(self, planned: Planned) -> tuple[bool, str]:
        """Say whether some node could run the case, and if not, what it needs and what Slurm says to that."""
        if not planned.reproducible:
            return False, "the catalog has no reproduction of it yet"
        away = [f"{node.name} is {node.state}" for node in self._nodes if node.away]
        told = "; ".join((f"features of its nodes: {', '.join(self._features) or 'none'}", *away))
        if lack := self._branches(planned)[1]:
            return False, f"{lack}; {told}"
        wanted = self._needs(planned)
        if wanted not in self._refused:
            self._refused[wanted] = self._commands.refuses(wanted.options)
        said = self._refused[wanted]
        if not said:
            return True, ""
        asked = " ".join(option for option in wanted.options if not option.startswith("--cpus"))
        return False, f"needs {asked or wanted.options[0]}; Slurm: {said}; {told}"

    def capabilities(self, level: Level) -> dict[str, Any]:
        """Return what a verdict at `level` depends on, as the machine that submits has it."""
        return self._here.capabilities(level)

    def run(self, bases: Sequence[str], environ: Mapping[str, str], log: Path) -> Ending:
        """Submit what is left, gather results as they come, and return when no task of the run is in the queue.

        What a task left undone, unless it was cancelled, is given a second one, each case alone: a case that kills its
        task takes no other along. After Ctrl-C the run's tasks are cancelled.
        """
        folder = Path(environ["MEGATRIX_RUN"])
        queue = Queue(folder, self._commands, self._look_s, self._sleep, log)
        sender = Sender(environ["MEGATRIX_RELAY"], lambda: None)
        told = set(journal.read(folder).results)
        images = {base: image for base in bases if (image := self._image(base))}

        def look() -> None:
            for key, record in journal.read(folder).results.items():
                if key not in told:
                    told.add(key)
                    sender.send(record)

        try:
            asking = self._ask(queue, images) if images else []
            status, unmade = self._make(queue, [base for base in bases if base not in images], environ, log)
            self._submit_left(queue, [base for base in bases if base not in {*images, *unmade}])
            if asking:
                queue.wait(look, asking)
            refused, silent = self._provide(queue, images)
            self._submit_left(queue, [base for base in images if base not in {*refused, *silent}])
            queue.wait(look)
            self._submit_left(queue, [base for base in bases if base not in {*unmade, *refused, *silent}], alone=True)
            queue.wait(look)
            if lost := pending(folder, [base for base in bases if base not in refused]):
                self._say_what_is_lost(queue, lost, {**unmade, **silent})
        except BaseException:
            queue.cancel()
            raise
        finally:
            look()
            sender.close()
            for printed in queue.parts.glob("*.log"):
                mask_file(printed)
        return Ending(status or int(bool(lost)), refused)

    def _image(self, base: str) -> Ref | None:
        known = self._catalog.bases.get(base)
        return inside.ref(self._catalog, base) if isinstance(known, (Image, Container)) else None

    def _ask(self, queue: Queue, images: Mapping[str, Ref]) -> list[str]:
        """Have a node say what each image holds, unless one did or is about to; return the names of these arrays.

        What an image lacked when an earlier submitter asked may be there by now.
        """
        asked = {
            f"{ASK}{base}": base
            for base in images
            if not isinstance(reported_contents(queue.parts, base), BaseContents)
        }
        waiting = {queue.part_name(task) for task in queue.live()}
        for name, base in asked.items():
            if name not in waiting:
                answer(queue.parts, base).unlink(missing_ok=True)
                first = self._needs(pending(queue.folder, [base])[0])
                wanted = replace(first, cpus=1, gpus=min(1, first.gpus))  # it only looks
                self._submit(queue, wanted, ArraySpec([[]], image=images[base]), name)
        return list(asked)

    def _provide(self, queue: Queue, images: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
        """Lay out what goes over each image; return what the node lacks that was asked, and why none told, by base."""
        refused, silent = {}, {}
        for base in images:
            found = reported_contents(queue.parts, base)
            if isinstance(found, BaseContents):
                self._lay_out(queue, base, found)
            elif found:
                refused[base] = found
            else:
                end = queue.ends().get(f"{ASK}{base}", "Slurm no longer knows its task")
                silent[base] = f"no node told what {base} holds: {end}; it printed {queue.parts}/{ASK}{base}-0.log"
        return refused, silent

    def _make(
        self, queue: Queue, bases: Sequence[str], environ: Mapping[str, str], log: Path
    ) -> tuple[int, dict[str, str]]:
        """Make environments and overlays, here, where there is a network; return tox's status, and what it made not."""
        ending = self._maker.run(bases, environ, log) if bases else Ending()
        unmade = {}
        for base in bases:
            if found := self._maker.installed(base):
                self._lay_out(queue, base, found)
            else:
                unmade[base] = f"tox made no environment of {base}: what it said is in {log}"
        return ending.status, unmade

    def _lay_out(self, queue: Queue, base: str, found: BaseContents) -> None:
        """Make the overlays of a base's cases."""
        overlays, told = Overlays(default_root(self._environ)), configuration.load(self._environ)
        cases = pending(queue.folder, [base])
        provided = provision.provide(cases, found.environment, told, found.interpreter, overlays)
        path = queue.parts / f"overlays-{base}.json"
        provision.write(path.with_suffix(".part"), provided)
        path.with_suffix(".part").replace(path)  # a task of an earlier submitter may be about to read it

    def _submit_left(self, queue: Queue, bases: Sequence[str], *, alone: bool = False) -> None:
        """Submit what has no result, is in no task that may still run and was in none that somebody cancelled."""
        if not bases:
            return
        # The queue is asked before the journals: what ends in between counts as alive, and is waited for.
        taken = {key for task in queue.live() for key in queue.keys(task)} | queue.cancelled()
        left = [item for item in pending(queue.folder, bases) if item.key not in taken]
        nodes = {node.name: node.features for node in self._nodes}
        for wanted, tasks in arrays(left, self._needs, self._commands.longest(), alone=alone):
            image = self._image(wanted.base)
            found = reported_contents(queue.parts, wanted.base) if image else None
            digest = found.image if isinstance(found, BaseContents) else ""
            self._submit(queue, wanted, ArraySpec(tasks, nodes, image, digest))

    def _submit(self, queue: Queue, wanted: ResourceRequest, part: ArraySpec, name: str = "") -> None:
        path = queue.write(part, name)
        limit = minutes(part, wanted, deadline(self._environ.get("MEGATRIX_DEADLINE", "")))
        options = (
            f"--job-name={queue.name}{path.stem}",
            f"--array=0-{len(part.tasks) - 1}",
            f"--chdir={project.folder()}",
            f"--output={path.parent}/{path.stem}-%a.log",
            "--open-mode=append",
            "--requeue",
            f"--time={limit}",
            *wanted.options,
        )
        settings = {
            **{key: value for key, value in self._environ.items() if not key.startswith("TOX_")},
            **SETTINGS,
            "MEGATRIX_RUN": str(queue.folder),
            "MEGATRIX_BASE": wanted.base,
            "MEGATRIX_OVERLAYS": str(path.parent / f"overlays-{wanted.base}.json"),
        }
        found = None if part.image else self._maker.installed(wanted.base)
        python = found.interpreter if found else sys.executable
        # exec: the step daemon is the parent of the task, which notices when it is gone.
        script = f"#!/bin/sh\nexec {shlex.join([str(python), '-m', 'matrix.execution.slurm.task', str(path)])}\n"
        job = self._commands.submit(options, script, settings)
        queue.say(f"{queue.name}{path.stem}: job {job}, {len(part.tasks)} tasks")

    def _needs(self, item: Planned) -> ResourceRequest:
        return needs(item, self._cpus, self._branches(item)[0])

    def _branches(self, item: Planned) -> tuple[tuple[str, ...], str]:
        """Return the driver branches that a case is to run on, none for any, and why no node's will do."""
        return drivers.runnable(self._catalog, item, drivers.branches(self._features))

    def _say_what_is_lost(self, queue: Queue, lost: Iterable[Planned], why: Mapping[str, str]) -> None:
        """Keep for each case without a result what became of its task, or `why` there was none: it is not reached."""
        ends = queue.ends()
        with journal.Journal.new(queue.folder) as kept:
            for item in lost:
                reason = ends.get(item.key) or why.get(item.cell.base, "Slurm no longer knows its task")
                outcome = Outcome(OutcomeKind.NOT_REACHED, reason)
                kept.result(not_run(item, self._catalog, outcome, queue.folder.name))
