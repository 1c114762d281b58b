"""Entry point of an array task on its node: `python -m matrix.prove.execution.slurm.task PART`.

It runs in the interpreter of its base. For an image it runs in the submitter's interpreter and starts a container.

It holds a lock until it exits. If Slurm loses contact with a node that still works, it starts the task again on another
node. The second task waits for the lock, then runs only the cases without a result.

An image on a node: its contents are reported, and a task's cases run in it. This code runs outside of the image in the
submitter's interpreter, and needs neither pytest nor torch.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from matrix.ground.catalog.codec import decode_json
from matrix.ground.catalog.folders import entries, folder_name, roots
from matrix.ground.catalog.loading import load
from matrix.ground.catalog.machine import PythonEnvironment
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.ground.verdicts.planned import Planned
from matrix.prove.execution import inside, interrupt
from matrix.prove.execution.relay import Receiver
from matrix.prove.execution.reproduction import not_run
from matrix.prove.execution.slurm.queue import ArraySpec
from matrix.prove.provision import host, tools
from matrix.prove.provision.tools import Ref, Runtime
from matrix.prove.store import journal
from matrix.prove.store.paths import write_whole
from matrix.prove.store.stored_run import StoredRun
from matrix.read.kernel import die_with_parent
from matrix.read.machine.installed import REPORTED


@dataclass(frozen=True)
class NodeTask:
    """The task `index` of the array whose spec is in the file `path`, on a node."""

    path: Path
    part: ArraySpec
    index: int
    node: str
    run: StoredRun

    @property
    def keys(self) -> list[str]:
        """Return its cases without a result."""
        results = self.run.journals.read().results
        return [key for key in self.part.tasks[self.index] if key not in results]

    def file(self, suffix: str) -> Path:
        """Return a file of this task."""
        return self.path.with_name(f"{self.path.stem}-{self.index}{suffix}")


def runtime() -> Runtime | None:
    """Return the container runtime of this node: Pyxis if Slurm has it, else podman or docker, else None."""
    return tools.find_pyxis() or tools.find()


def report_contents(image: Ref, parts: Path, node: str) -> int:
    """Write the contents of the image on this node, or why they can't be read, to `parts`; return 0."""
    tool = runtime()
    why = inside.lack(tool, image)
    report: dict[str, object] = {}
    if tool and not why:
        try:
            contents = inside.installed(tool, image, os.environ)
            report = {name: getattr(contents, name) for name in (*REPORTED, "image")}
        except MatrixError as error:
            why = error.brief
    write_whole(answer(parts, image.id), json.dumps(report or {"reason": f"{why} (node {node})"}) + "\n")
    return 0


def reported_contents(parts: Path, base: str) -> PythonEnvironment | str | None:
    """Return what `report_contents` wrote: the contents, or why nothing runs in the image; None without a report."""
    try:
        report = json.loads(answer(parts, base).read_text("utf-8"))
    except FileNotFoundError:
        return None
    if "reason" in report:
        return str(report["reason"])
    return PythonEnvironment(report["python"], report["packages"], report.get("features"), image=report["image"])


def answer(parts: Path, base: str) -> Path:
    """Return the file with a node's report of an image's contents."""
    return parts / f"image-{base}.json"


def run_in_image(task: NodeTask, image: Ref, keys: Collection[str]) -> int:
    """Run these cases of a task in the image; return the container's exit status.

    If the node can't run the image, the cases are recorded as `unavailable` with the node's name.
    """
    cases = [case for case in task.run.pending() if case.key in keys]
    tool, digest = runtime(), task.part.digest
    lack = inside.lack(tool, image)
    if tool and not lack and (local := tool.digest(image)) != digest:
        lack = f"{image.tag} is {local}, and {digest} on the node that reported its contents"
    if tool is None or lack:
        record_unavailable(task, cases, lack)
        return 0
    disconnected, status = threading.Event(), 0
    # This socket shows the container that this task has ended, and the task that the container has.
    with Receiver(lambda record: None, left=disconnected.set) as receiver:
        settings = {name: os.environ[name] for name in ("MEGATRIX_KEYS", "MEGATRIX_PLACE")}
        settings["MEGATRIX_RELAY"] = receiver.address
        overlays = task.path.parent / f"overlays-{image.id}.json"
        work = inside.ContainerJob(image, digest, task.run.folder, overlays, cases, settings)
        for job in inside.containers(load(), work, host.load_configuration().sources):
            ended = inside.run_container(tool, job, os.environ, task.file(".log"), left=disconnected)
            if ended.refusal:
                # Slurm restarts a task under the same name, for which enroot finds the files of the dead task. The next
                # step of the task has another name.
                ended = inside.run_container(tool, job, os.environ, task.file(".log"), left=disconnected)
            if ended.refusal:
                record_unavailable(task, job.cases, ended.refusal)
            status = status or ended.status
    return status


def record_unavailable(task: NodeTask, cases: Iterable[Planned], reason: str) -> None:
    """Record the outcome `unavailable` for those of the cases that have no result."""
    catalog, pending = load(), {case.key for case in task.run.pending()}
    with journal.Journal.new(task.run.folder) as records:
        for case in cases:
            if case.key in pending:
                outcome = Outcome(OutcomeKind.UNAVAILABLE, f"{reason} (node {task.node})")
                records.result(not_run(case, catalog, outcome, task.run.folder.name))


# pytest's exit statuses: all passed, some failed. A failed test is a recorded red verdict, not a failed Slurm task.
DONE = (0, 1)
CANCELLED = 130  # a shell's status after Ctrl-C


def main(path: Path) -> int:
    """Run the cases of this task that have no result; return 0 if each has one afterwards."""
    die_with_parent(os.getppid())
    part = decode_json(ArraySpec, path.read_text("utf-8"), str(path))
    index, node = int(os.environ["SLURM_ARRAY_TASK_ID"]), os.environ["SLURMD_NODENAME"]
    if part.image and not part.tasks[index]:
        return report_contents(part.image, path.parent, node)
    task = NodeTask(path, part, index, node, StoredRun(Path(os.environ["MEGATRIX_RUN"])))
    run = in_image(task, part.image) if part.image else in_this_interpreter()
    with task.file(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        keys = task.keys
        if not keys:
            return 0
        os.environ["MEGATRIX_KEYS"] = json.dumps(keys)
        os.environ["MEGATRIX_PLACE"] = f"node {node}: {', '.join(part.nodes.get(node, ())) or 'no features'}"
        try:
            status = run(keys)
        except KeyboardInterrupt:
            return CANCELLED
        missing = task.keys
    if missing:
        print(f"{len(missing)} of {len(keys)} cases have no result; pytest ended with {status}", file=sys.stderr)  # noqa: T201  (goes to the task's log)
    return 0 if not missing and status in DONE else 1


def in_this_interpreter() -> Callable[[list[str]], int]:
    """Return a function that runs cases in this process. Slow modules are imported now, before the lock."""
    import pytest

    import matrix.prove.execution.session  # noqa: F401  (the plugin imports it)

    def run(keys: list[str]) -> int:
        names = {folder_name(key.split()[1]) for key in keys}  # CELL FAILURE CASE LEVEL
        paths = [str(path) for root in roots() for path in entries(root) if path.parent.name in names]
        # The plugin by name: a site's failures have no conftest.py above them.
        return int(pytest.main(["-p", "matrix.prove.execution.plugin", *paths]))

    return run


def in_image(task: NodeTask, ref: Ref) -> Callable[[list[str]], int]:
    """Return a function that runs cases in the array's image; scancel stops them like Ctrl-C."""

    def run(keys: list[str]) -> int:
        interrupt.once()
        return run_in_image(task, ref, keys)

    return run


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
