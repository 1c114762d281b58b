"""Entry point of an array task on its node: `python -m matrix.prove.execution.slurm.task PART`.

It runs in the interpreter of its base. For an image it runs in the submitter's interpreter and starts a container.

It holds a lock until it exits. If Slurm loses contact with a node that still works, it starts the task again on another
node. The second task waits for the lock, then runs only the cases without a result.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from matrix.ground.catalog.codec import decode_json
from matrix.ground.catalog.folders import entries, folder_name, roots
from matrix.prove.execution import interrupt
from matrix.prove.execution.slurm import image
from matrix.prove.execution.slurm.array_spec import ArraySpec
from matrix.prove.provision.tools import Ref
from matrix.prove.store.stored_run import StoredRun
from matrix.read.kernel import die_with_parent

# pytest's exit statuses: all passed, some failed. A failed test is a recorded red verdict, not a failed Slurm task.
DONE = (0, 1)
CANCELLED = 130  # a shell's status after Ctrl-C


def main(path: Path) -> int:
    """Run the cases of this task that have no result; return 0 if each has one afterwards."""
    die_with_parent(os.getppid())
    part = decode_json(ArraySpec, path.read_text("utf-8"), str(path))
    index, node = int(os.environ["SLURM_ARRAY_TASK_ID"]), os.environ["SLURMD_NODENAME"]
    if part.image and not part.tasks[index]:
        return image.report_contents(part.image, path.parent, node)
    task = image.NodeTask(path, part, index, node, StoredRun(Path(os.environ["MEGATRIX_RUN"])))
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


def in_image(task: image.NodeTask, ref: Ref) -> Callable[[list[str]], int]:
    """Return a function that runs cases in the array's image; scancel stops them like Ctrl-C."""

    def run(keys: list[str]) -> int:
        interrupt.once()
        return image.run(task, ref, keys)

    return run


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
