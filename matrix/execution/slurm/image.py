"""Handle an image on a node: report its contents, and run a task's cases in it.

This code runs outside of the image in the submitter's interpreter, and needs neither pytest nor torch.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from matrix.catalog.loading import load
from matrix.errors import MatrixError
from matrix.execution import inside
from matrix.execution.engine import BaseContents, pending
from matrix.execution.relay import Receiver
from matrix.execution.reproduction import not_run
from matrix.execution.slurm.array_spec import ArraySpec
from matrix.provision import configuration, pyxis, tools
from matrix.provision.installed import PythonEnvironment
from matrix.provision.tools import Ref, Runtime
from matrix.store import journal
from matrix.store.paths import write_whole
from matrix.verdicts.outcome import Outcome, OutcomeKind


def runtime(environ: Mapping[str, str] = os.environ) -> Runtime | None:
    """Return the container runtime of this node: Pyxis if Slurm has it, else podman or docker, else None."""
    return pyxis.find(environ) or tools.find(environ)


def report_contents(image: Ref, parts: Path, node: str) -> int:
    """Write the contents of the image on this node, or why they can't be read, to `parts`; return 0."""
    found = runtime()
    why = inside.lack(found, image)
    contents: dict[str, object] = {}
    if found and not why:
        try:
            holds = inside.installed(found, image, os.environ)
            contents = {**vars(holds.environment), "image": holds.image}
        except MatrixError as error:
            why = error.brief
    write_whole(answer(parts, image.id), json.dumps(contents or {"reason": f"{why} (node {node})"}) + "\n")
    return 0


def reported_contents(parts: Path, base: str) -> BaseContents | str | None:
    """Return what `report_contents` wrote: the contents, or why nothing runs in the image; None without a report."""
    try:
        report = json.loads(answer(parts, base).read_text("utf-8"))
    except FileNotFoundError:
        return None
    if "reason" in report:
        return str(report["reason"])
    environment = PythonEnvironment(report["python"], report["packages"], report.get("features"))
    return BaseContents(environment, image=report["image"])


def answer(parts: Path, base: str) -> Path:
    """Return the file with a node's report of an image's contents."""
    return parts / f"image-{base}.json"


def run(part: ArraySpec, image: Ref, keys: Sequence[str], folder: Path, overlays: Path, log: Path, node: str) -> int:
    """Run these cases of the run in `folder` in the image; return the container's exit status.

    If the node can't run the image, the cases are recorded as `unavailable` with the node's name.
    """
    found = runtime()
    lack = inside.lack(found, image)
    if found and not lack and (digest := found.digest(image)) != part.digest:
        lack = f"{image.tag} is {digest}, and {part.digest} on the node that reported its contents"
    if found is None or lack:
        record_unavailable(folder, image.id, keys, f"{lack} (node {node})")
        return 0
    cases = [case for case in pending(folder, [image.id]) if case.key in keys]
    left, status = threading.Event(), 0
    # This socket shows the container that this task has ended, and the task that the container has.
    with Receiver(lambda record: None, left=left.set) as receiver:
        settings = {name: os.environ[name] for name in ("MEGATRIX_KEYS", "MEGATRIX_PLACE")}
        settings |= {"MEGATRIX_RELAY": receiver.address}
        work = inside.ContainerJob(image, part.digest, folder, overlays, cases, settings)
        for one in inside.containers(load(), work, configuration.load().sources):
            ended = inside.run(found, one, os.environ, log, left=left)
            if ended.refusal:
                # Slurm restarts a task under the same name, for which enroot finds the files of the dead task. The next
                # step of the task has another name.
                ended = inside.run(found, one, os.environ, log, left=left)
            if ended.refusal:
                reason = f"{ended.refusal} (node {node})"
                record_unavailable(folder, image.id, [item.key for item in one.cases], reason)
            status = status or ended.status
    return status


def record_unavailable(folder: Path, base: str, keys: Iterable[str], reason: str) -> None:
    """Record the outcome `unavailable` for those of the cases that have no result."""
    catalog, selected = load(), set(keys)
    with journal.Journal.new(folder) as kept:
        for item in pending(folder, [base]):
            if item.key in selected:
                kept.result(not_run(item, catalog, Outcome(OutcomeKind.UNAVAILABLE, reason), folder.name))
