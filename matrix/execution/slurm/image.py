"""What a node does with an image: it says what the image holds, and runs a task's cases in it.

It runs in the interpreter of whoever submitted, outside of the image, which needs neither pytest nor torch.
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
from matrix.execution.run import not_run
from matrix.execution.slurm.array_spec import ArraySpec
from matrix.provision import pyxis, tools
from matrix.provision.installed import PythonEnvironment
from matrix.provision.tools import Ref, Runtime
from matrix.store import journal
from matrix.store.paths import write_whole
from matrix.verdicts.outcome import Outcome, OutcomeKind


def runtime(environ: Mapping[str, str] = os.environ) -> Runtime | None:
    """Return what runs images on this node: Pyxis where Slurm has it, else podman or docker."""
    return pyxis.find(environ) or tools.find(environ)


def report_contents(image: Ref, parts: Path, node: str) -> int:
    """Write beside the run's parts what the image holds on this node, or why it can't be told; return 0."""
    found = runtime()
    why = inside.lack(found, image)
    told: dict[str, object] = {}
    if found and not why:
        try:
            holds = inside.installed(found, image, os.environ)
            told = {**vars(holds.environment), "image": holds.image}
        except MatrixError as error:
            why = error.brief
    write_whole(answer(parts, image.id), json.dumps(told or {"reason": f"{why} (node {node})"}) + "\n")
    return 0


def reported_contents(parts: Path, base: str) -> BaseContents | str | None:
    """Return what `tell` wrote: what the image holds, or why nothing runs in it; None when it has told nothing."""
    try:
        told = json.loads(answer(parts, base).read_text("utf-8"))
    except FileNotFoundError:
        return None
    if "reason" in told:
        return str(told["reason"])
    return BaseContents(PythonEnvironment(told["python"], told["packages"]), image=told["image"])


def answer(parts: Path, base: str) -> Path:
    """Return the file in which a node told what an image holds."""
    return parts / f"image-{base}.json"


def run(part: ArraySpec, image: Ref, keys: Sequence[str], folder: Path, overlays: Path, log: Path, node: str) -> int:
    """Run these cases of the run in `folder` in the image; return how the container ended.

    What the node lacks for it makes them `unavailable`, with the node's name.
    """
    found = runtime()
    lack = inside.lack(found, image)
    if found and not lack and (here := found.digest(image)) != part.digest:
        lack = f"{image.tag} is {here}, and {part.digest} on the node that was asked first"
    if found is None or lack:
        say_unavailable(folder, image.id, keys, f"{lack} (node {node})")
        return 0
    cases = [case for case in pending(folder, [image.id]) if case.key in keys]
    left = threading.Event()
    # By this socket the container notices when this task is gone, and the task when the container is.
    with Receiver(lambda record: None, left=left.set) as receiver:
        told = {name: os.environ[name] for name in ("MEGATRIX_KEYS", "MEGATRIX_PLACE")}
        work = inside.ContainerJob(
            image, part.digest, folder, overlays, cases, {**told, "MEGATRIX_RELAY": receiver.address}
        )
        ended = inside.run(found, work, os.environ, log, left=left)
        if ended.refusal:
            # Slurm starts a task again by the same name, under which enroot finds what the dead one left; the next step
            # of the task has another.
            ended = inside.run(found, work, os.environ, log, left=left)
    if ended.refusal:
        say_unavailable(folder, image.id, keys, f"{ended.refusal} (node {node})")
    return ended.status


def say_unavailable(folder: Path, base: str, keys: Iterable[str], reason: str) -> None:
    """Keep for those of the cases that have no result that they can't run."""
    known, wanted = load(), set(keys)
    with journal.Journal.new(folder) as kept:
        for item in pending(folder, [base]):
            if item.key in wanted:
                kept.result(not_run(item, known, Outcome(OutcomeKind.UNAVAILABLE, reason), folder.name))
