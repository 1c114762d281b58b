"""The engine that submits a run to Slurm and collects the results that its tasks write.

All state is in Slurm's queue and in the run's journals. The tasks continue when the submitter dies; the next submitter
(`--resume`) finds the running tasks in the queue and the results in the journals.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from matrix.ground.catalog.folders import default_root
from matrix.ground.catalog.machine import PythonEnvironment
from matrix.ground.catalog.model import Container, Image
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.ground.verdicts.planned import Planned
from matrix.prove.execution import inside
from matrix.prove.execution.engine import Engine, EngineRequest, EngineResult
from matrix.prove.execution.relay import Sender
from matrix.prove.execution.reproduction import not_run
from matrix.prove.execution.slurm.queue import ArraySpec, ClusterSite, Polling, Queue, ResourceRequest, arrays
from matrix.prove.execution.slurm.task import answer, reported_contents
from matrix.prove.provision import case_overlays as provision
from matrix.prove.provision import host
from matrix.prove.provision.overlays import Overlays
from matrix.prove.provision.tools import Ref
from matrix.prove.store import journal
from matrix.prove.store.secrets import mask_file

ASK: Final = "ask-"  # prefix of the array of one task that reports the contents of an image; the base follows
POLLING: Final = Polling()


class Slurm:
    """Runs cases as array jobs on the nodes of `site`. `maker` makes environments in a folder that they share.

    For a base that is an image, a task first reports the contents of the image from a node.
    """

    def __init__(
        self, site: ClusterSite, maker: Engine, *, environ: Mapping[str, str] = os.environ, polling: Polling = POLLING
    ) -> None:
        self.site, self.maker, self.environ, self.polling = site, maker, environ, polling

    def ready(self, bases: Collection[str]) -> None:
        """Check the engine that makes the environments; Slurm's commands were checked before."""
        if environments := [base for base in bases if not self._image(base)]:
            self.maker.ready(environments)

    def lacks(self, base: str) -> str:
        """Return which Python the environment of a base lacks; the nodes report what an image lacks."""
        return "" if self._image(base) else self.maker.lacks(base)

    def installed(self, base: str) -> PythonEnvironment | None:
        """Return the contents of a base of wheels; None for an image, whose contents a node reports later."""
        return None if self._image(base) else self.maker.installed(base)

    def run(self, request: EngineRequest) -> EngineResult:
        """Submit the cases without a result, send results as they arrive, return when the queue has no task of the run.

        Cases that a task left without a result run once more, each in its own task, unless the task was cancelled: a
        case that kills its task then affects no other. After Ctrl-C the run's tasks are cancelled.
        """
        images = {base: image for base in request.bases if (image := self._image(base))}
        bases = [base for base in request.bases if base not in images]
        batch = _Batch(self, request, images)
        try:
            reports = batch.request_contents()
            unmade = batch.make(bases)
            batch.submit_left([base for base in bases if base not in unmade])
            if reports:
                batch.wait(reports)
            refused, silent = batch.provide()
            batch.submit_left([base for base in images if base not in {*refused, *silent}])
            batch.wait()
            batch.submit_left([base for base in request.bases if base not in {*unmade, *refused, *silent}], alone=True)
            batch.wait()
            lost = [case for case in request.pending() if case.cell.base not in refused]
            if lost:
                batch.record_lost(lost, {**unmade, **silent})
        except BaseException:
            batch.queue.cancel()
            raise
        finally:
            batch.close()
        return EngineResult(int(bool(lost)), refused)

    def _image(self, base: str) -> Ref | None:
        declared = self.site.catalog.bases.get(base)
        return inside.ref(self.site.catalog, base) if isinstance(declared, (Image, Container)) else None


class _Batch:
    """The tasks of one run: `images` are those of its bases that are images."""

    def __init__(self, slurm: Slurm, request: EngineRequest, images: Mapping[str, Ref]) -> None:
        self._site, self._maker, self._environ = slurm.site, slurm.maker, slurm.environ
        self._request, self._images = request, images
        self.queue = Queue(request.run.folder.resolve(), slurm.site.commands, slurm.polling, request.log)
        self._sender = Sender(request.relay, lambda: None)
        self._sent = set(request.run.journals.read().results)

    def wait(self, names: Collection[str] | None = None) -> None:
        """Wait until the queue has no task (of the arrays `names`, if given); send results as they arrive."""
        self.queue.wait(self._send_results, names)

    def close(self) -> None:
        """Send the results that are left, and mask the logs."""
        self._send_results()
        self._sender.close()
        mask_logs(self.queue.parts)

    def _send_results(self) -> None:
        for key, record in self._request.run.journals.read().results.items():
            if key not in self._sent:
                self._sent.add(key)
                self._sender.result(record)

    def request_contents(self) -> list[str]:
        """Submit a task that reports the contents of each image without a report; return the names of the arrays.

        A report of a missing image is requested again, because the image may exist by now. Tasks that an earlier
        submitter started are used.
        """
        unreported = {f"{ASK}{base}": base for base in self._images if not self._reported(base)}
        waiting = {self.queue.part_name(task) for task in self.queue.live()} if unreported else set()
        for name, base in unreported.items():
            if name not in waiting:
                answer(self.queue.parts, base).unlink(missing_ok=True)
                resources = self._site.request(self._request.pending(base)[0])
                resources = replace(resources, cpus=1, gpus=min(1, resources.gpus), memory=0)  # it only reads
                self._submit(resources, ArraySpec(((),), image=self._images[base]), name)
        return list(unreported)

    def _reported(self, base: str) -> PythonEnvironment | None:
        report = reported_contents(self.queue.parts, base)
        return report if isinstance(report, PythonEnvironment) else None

    def provide(self) -> tuple[dict[str, str], dict[str, str]]:
        """Make the overlays of each image; return by base why a node can't run it, and why there is no report."""
        refused, silent, parts = {}, {}, self.queue.parts
        for base in self._images:
            report = reported_contents(parts, base)
            if isinstance(report, PythonEnvironment):
                self._lay_out(base, report)
            elif report:
                refused[base] = report
            else:
                end = self.queue.ends().get(f"{ASK}{base}", "its task is no longer in Slurm's queue")
                silent[base] = f"no node reported the contents of {base}: {end}; log: {parts}/{ASK}{base}-0.log"
        return refused, silent

    def make(self, bases: Sequence[str]) -> dict[str, str]:
        """Make environments and overlays on this machine, which has a network.

        Returns why a base has no environment, by base.
        """
        result = self._maker.run(replace(self._request, bases=bases)) if bases else EngineResult()
        for base in bases:
            if contents := self._maker.installed(base):
                self._lay_out(base, contents)
        return dict(result.refused)

    def _lay_out(self, base: str, contents: PythonEnvironment) -> None:
        """Make the overlays of a base's cases."""
        overlays, settings = Overlays(default_root(self._environ)), host.load_configuration(self._environ)
        cases = self._request.pending(base)
        provisions = provision.provide(
            cases, replace(contents, image=""), settings, overlays
        )  # an image builds nothing
        path = self.queue.parts / f"overlays-{base}.json"
        provision.write(path.with_suffix(".part"), provisions)
        path.with_suffix(".part").replace(path)  # a task of an earlier submitter may read it now

    def submit_left(self, bases: Sequence[str], *, alone: bool = False) -> None:
        """Submit the cases that have no result, are in no task that may still run and in no cancelled task."""
        if not bases:
            return
        # Read the queue before the journals: a task that ends in between counts as live and is waited for.
        submitted = {key for task in self.queue.live() for key in self.queue.keys(task)} | self.queue.cancelled()
        cases = [case for case in self._request.pending(*bases) if case.key not in submitted]
        nodes = {node.name: node.features for node in self._site.nodes}
        for resources, tasks in arrays(cases, self._site.request, self._site.commands.longest(), alone=alone):
            report = self._reported(resources.base) if resources.base in self._images else None
            digest = report.image if report else ""
            self._submit(
                resources, ArraySpec(tuple(map(tuple, tasks)), nodes, self._images.get(resources.base), digest)
            )

    def _submit(self, resources: ResourceRequest, part: ArraySpec, name: str = "") -> None:
        contents = None if part.image else self._maker.installed(resources.base)
        python = (contents and contents.path) or Path(sys.executable)
        self.queue.submit(part, resources, python, self._environ, name)

    def record_lost(self, lost: Sequence[Planned], why: Mapping[str, str]) -> None:
        """Record each case without a result as not reached: how its task ended, or `why` by base without a task."""
        ends = self.queue.ends()
        with journal.Journal.new(self.queue.folder) as records:
            for case in lost:
                reason = ends.get(case.key) or why.get(case.cell.base, "its task is no longer in Slurm's queue")
                outcome = Outcome(OutcomeKind.NOT_REACHED, reason)
                records.result(not_run(case, self._site.catalog, outcome, self.queue.folder.name))


def mask_logs(parts: Path) -> None:
    """Mask the secrets in the output of the tasks."""
    for path in parts.glob("*.log"):
        mask_file(path)
