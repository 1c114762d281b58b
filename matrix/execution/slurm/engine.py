"""The engine that submits a run to Slurm and collects the results that its tasks write.

All state is in Slurm's queue and in the run's journals. The tasks continue when the submitter dies; the next submitter
(`--resume`) finds the running tasks in the queue and the results in the journals.
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
from matrix.execution import inside
from matrix.execution.engine import BaseContents, Engine, EngineResult, pending
from matrix.execution.relay import Sender
from matrix.execution.reproduction import not_run
from matrix.execution.session import deadline
from matrix.execution.slurm.array_spec import ArraySpec, ResourceRequest, arrays, minutes, needs
from matrix.execution.slurm.commands import Commands, Node
from matrix.execution.slurm.image import answer, reported_contents
from matrix.execution.slurm.queue import Queue
from matrix.planning import driver_fit
from matrix.planning.requirements import BaseOffer, MachineOffer, unmet
from matrix.provision import case_overlays as provision
from matrix.provision import configuration, kernel, project
from matrix.provision.host import Host
from matrix.provision.overlays import Overlays, default_root
from matrix.provision.tools import Ref
from matrix.provision.tox_environments import CELL_SETTINGS
from matrix.store import journal, scratch
from matrix.store.secrets import mask_file
from matrix.verdicts.outcome import Outcome, OutcomeKind
from matrix.verdicts.planned import Planned
from matrix.verdicts.reason import Kind, Lack

# Seconds between two polls of the queue and the journals; neither can notify another machine. squeue takes 5 ms with 20
# tasks in the queue (two busy cores, Slurm 22.05).
LOOK_S: Final = 2.0
ASK: Final = "ask-"  # prefix of the array of one task that reports the contents of an image; the base follows
# The nodes share the folder, and are neither this machine nor children of this process.
SETTINGS: Final = {**CELL_SETTINGS, "PYTHONDONTWRITEBYTECODE": "1", kernel.PARENT: "", scratch.VARIABLE: ""}


class Slurm:
    """Runs cases as array jobs. `maker` makes tox environments in a folder that the nodes share.

    For a base that is an image, a task first reports the contents of the image from a node.
    """

    def __init__(
        self,
        catalog: Catalog,
        host: Host,
        maker: Engine,
        commands: Commands,
        *,
        environ: Mapping[str, str] = os.environ,
        look_s: float = LOOK_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._catalog, self._host, self._maker, self._commands = catalog, host, maker, commands
        self._environ, self._look_s, self._sleep = environ, look_s, sleep
        self._nodes = commands.nodes()
        cpus, memory = (max((getattr(node, name) for node in self._nodes), default=1) for name in ("cpus", "memory"))
        self._largest = Node("", (), "", cpus, "", memory)
        self._features = sorted({feature for node in self._nodes for feature in node.features})
        self._refused: dict[ResourceRequest, str] = {}

    def ready(self, bases: Collection[str]) -> None:
        """Check the engine that makes the environments; Slurm's commands were checked before."""
        if made := [base for base in bases if not self._image(base)]:
            self._maker.ready(made)

    def lacks(self, base: str) -> str:
        """Return which Python the environment of a base lacks; the nodes report what an image lacks."""
        return "" if self._image(base) else self._maker.lacks(base)

    def installed(self, base: str) -> BaseContents | None:
        """Return the contents of a tox environment; None for an image, whose contents a node reports later."""
        return None if self._image(base) else self._maker.installed(base)

    def lack(self, catalog: Catalog, item: Planned, offer: BaseOffer) -> Lack | None:
        """Return what a case requires and its base or every node lacks, with Slurm's error message.

        The GPUs of a node are matched where the case runs.
        """
        if lack := unmet(catalog, item, offer, MachineOffer()):
            return lack
        away = [f"{node.name} is {node.state}" for node in self._nodes if node.away]
        nodes = "; ".join((f"features of its nodes: {', '.join(self._features) or 'none'}", *away))
        if too_old := self._branches(item)[1]:
            return Lack(Kind.DRIVER, f"{too_old}; {nodes}")
        request = self._needs(item)
        if request not in self._refused:
            self._refused[request] = self._commands.option_error(request.options)
        refusal = self._refused[request]
        if not refusal:
            return None
        options = " ".join(option for option in request.options if not option.startswith("--cpus"))
        text = f"needs {options or request.options[0]}; Slurm: {refusal}; {nodes}"
        return Lack(Kind.GPUS if request.gpus else Kind.NODE, text)

    def capabilities(self, level: Level) -> dict[str, Any]:
        """Return the capabilities of the submitting machine that a verdict at `level` depends on."""
        return self._host.capabilities(level)

    def run(self, bases: Sequence[str], environ: Mapping[str, str], log: Path) -> EngineResult:
        """Submit the cases without a result, send results as they arrive, return when the queue has no task of the run.

        Cases that a task left without a result run once more, each in its own task, unless the task was cancelled: a
        case that kills its task then affects no other. After Ctrl-C the run's tasks are cancelled.
        """
        folder = Path(environ["MEGATRIX_RUN"])
        queue = Queue(folder, self._commands, self._look_s, self._sleep, log)
        sender = Sender(environ["MEGATRIX_RELAY"], lambda: None)
        sent = set(journal.read(folder).results)
        images = {base: image for base in bases if (image := self._image(base))}

        def look() -> None:
            for key, record in journal.read(folder).results.items():
                if key not in sent:
                    sent.add(key)
                    sender.result(record)

        try:
            reports = self._request_contents(queue, images) if images else []
            status, unmade = self._make(queue, [base for base in bases if base not in images], environ, log)
            self._submit_left(queue, [base for base in bases if base not in {*images, *unmade}])
            if reports:
                queue.wait(look, reports)
            refused, silent = self._provide(queue, images)
            self._submit_left(queue, [base for base in images if base not in {*refused, *silent}])
            queue.wait(look)
            self._submit_left(queue, [base for base in bases if base not in {*unmade, *refused, *silent}], alone=True)
            queue.wait(look)
            if lost := pending(folder, [base for base in bases if base not in refused]):
                self._record_lost(queue, lost, {**unmade, **silent})
        except BaseException:
            queue.cancel()
            raise
        finally:
            look()
            sender.close()
            for printed in queue.parts.glob("*.log"):
                mask_file(printed)
        return EngineResult(status or int(bool(lost)), refused)

    def _image(self, base: str) -> Ref | None:
        known = self._catalog.bases.get(base)
        return inside.ref(self._catalog, base) if isinstance(known, (Image, Container)) else None

    def _request_contents(self, queue: Queue, images: Mapping[str, Ref]) -> list[str]:
        """Submit a task that reports the contents of each image without a report; return the names of the arrays.

        A report of a missing image is requested again, because the image may exist by now. Tasks that an earlier
        submitter started are used.
        """
        unreported = {
            f"{ASK}{base}": base
            for base in images
            if not isinstance(reported_contents(queue.parts, base), BaseContents)
        }
        waiting = {queue.part_name(task) for task in queue.live()}
        for name, base in unreported.items():
            if name not in waiting:
                answer(queue.parts, base).unlink(missing_ok=True)
                first = self._needs(pending(queue.folder, [base])[0])
                request = replace(first, cpus=1, gpus=min(1, first.gpus), memory=0)  # it only reads
                self._submit(queue, request, ArraySpec(((),), image=images[base]), name)
        return list(unreported)

    def _provide(self, queue: Queue, images: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
        """Make the overlays of each image; return by base why a node can't run it, and why there is no report."""
        refused, silent = {}, {}
        for base in images:
            found = reported_contents(queue.parts, base)
            if isinstance(found, BaseContents):
                self._lay_out(queue, base, found)
            elif found:
                refused[base] = found
            else:
                end = queue.ends().get(f"{ASK}{base}", "its task is no longer in Slurm's queue")
                silent[base] = f"no node reported the contents of {base}: {end}; log: {queue.parts}/{ASK}{base}-0.log"
        return refused, silent

    def _make(
        self, queue: Queue, bases: Sequence[str], environ: Mapping[str, str], log: Path
    ) -> tuple[int, dict[str, str]]:
        """Make environments and overlays on this machine, which has a network.

        Returns tox's exit status, and for each base without an environment the reason.
        """
        ending = self._maker.run(bases, environ, log) if bases else EngineResult()
        unmade = {}
        for base in bases:
            if found := self._maker.installed(base):
                self._lay_out(queue, base, found)
            else:
                unmade[base] = f"tox made no environment of {base}: see its output in {log}"
        return ending.status, unmade

    def _lay_out(self, queue: Queue, base: str, found: BaseContents) -> None:
        """Make the overlays of a base's cases."""
        overlays, settings = Overlays(default_root(self._environ)), configuration.load(self._environ)
        cases = pending(queue.folder, [base])
        provided = provision.provide(cases, found.environment, settings, found.interpreter, overlays)
        path = queue.parts / f"overlays-{base}.json"
        provision.write(path.with_suffix(".part"), provided)
        path.with_suffix(".part").replace(path)  # a task of an earlier submitter may read it now

    def _submit_left(self, queue: Queue, bases: Sequence[str], *, alone: bool = False) -> None:
        """Submit the cases that have no result, are in no task that may still run and in no cancelled task."""
        if not bases:
            return
        # Read the queue before the journals: a task that ends in between counts as live and is waited for.
        taken = {key for task in queue.live() for key in queue.keys(task)} | queue.cancelled()
        left = [item for item in pending(queue.folder, bases) if item.key not in taken]
        nodes = {node.name: node.features for node in self._nodes}
        for request, tasks in arrays(left, self._needs, self._commands.longest(), alone=alone):
            image = self._image(request.base)
            found = reported_contents(queue.parts, request.base) if image else None
            digest = found.image if isinstance(found, BaseContents) else ""
            self._submit(queue, request, ArraySpec(tuple(map(tuple, tasks)), nodes, image, digest))

    def _submit(self, queue: Queue, request: ResourceRequest, part: ArraySpec, name: str = "") -> None:
        path = queue.write(part, name)
        limit = minutes(part, request, deadline(self._environ.get("MEGATRIX_DEADLINE", "")))
        options = (
            f"--job-name={queue.name}{path.stem}",
            f"--array=0-{len(part.tasks) - 1}",
            f"--chdir={project.folder()}",
            f"--output={path.parent}/{path.stem}-%a.log",
            "--open-mode=append",
            "--requeue",
            f"--time={limit}",
            *request.options,
        )
        settings = {
            **{key: value for key, value in self._environ.items() if not key.startswith("TOX_")},
            **SETTINGS,
            "MEGATRIX_RUN": str(queue.folder),
            "MEGATRIX_BASE": request.base,
            "MEGATRIX_OVERLAYS": str(path.parent / f"overlays-{request.base}.json"),
        }
        found = None if part.image else self._maker.installed(request.base)
        python = found.interpreter if found else sys.executable
        # exec makes the step daemon the parent of the task, so that the task ends with it.
        script = f"#!/bin/sh\nexec {shlex.join([str(python), '-m', 'matrix.execution.slurm.task', str(path)])}\n"
        job = self._commands.submit(options, script, settings)
        queue.note(f"{queue.name}{path.stem}: job {job}, {len(part.tasks)} tasks")

    def _needs(self, item: Planned) -> ResourceRequest:
        case = self._catalog.failure(item.failure).case_named(item.case) if item.reproducible else None
        return needs(item, case, self._largest, self._branches(item)[0])

    def _branches(self, item: Planned) -> tuple[tuple[str, ...], str]:
        """Return the driver branches for a case (empty: any), and why no node has one, or ""."""
        return driver_fit.runnable(self._catalog, item, driver_fit.branches(self._features))

    def _record_lost(self, queue: Queue, lost: Iterable[Planned], why: Mapping[str, str]) -> None:
        """Record each case without a result as not reached: how its task ended, or `why` by base without a task."""
        ends = queue.ends()
        with journal.Journal.new(queue.folder) as kept:
            for item in lost:
                reason = ends.get(item.key) or why.get(item.cell.base, "its task is no longer in Slurm's queue")
                outcome = Outcome(OutcomeKind.NOT_REACHED, reason)
                kept.result(not_run(item, self._catalog, outcome, queue.folder.name))
