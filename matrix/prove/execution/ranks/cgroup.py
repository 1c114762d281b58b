"""A memory cgroup for one job: created before its ranks start, removed after the last rank has ended."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from matrix.kit.rank import LackError
from matrix.read.machine.hardware import LIMITS, allowed, available, memberships

# Limits on swap too: a job above its limit must be killed, not slowed down by swapping.
WITH_SWAP: Final = {"memory.memsw.limit_in_bytes": None, "memory.swap.max": 0}  # None: the limit itself


@contextmanager
def memory_group(limit_bytes: int | None, root: Path = Path("/")) -> Iterator[str]:
    """Make a group of at most `limit_bytes` and yield its folder, "" for None. Raises LackError if that is impossible.

    A process that already has this limit needs no group: its container was started with it (execution/inside.py).
    An empty group remains if its owner is killed by SIGKILL.
    """
    if limit_bytes is None or allowed(limit_bytes + 1, root) == limit_bytes:
        yield ""
        return
    free = available(root)
    if free is not None and limit_bytes > free:
        raise LackError(f"needs {limit_bytes >> 20} MiB of memory for its limit; {free >> 20} MiB are available")
    try:
        folder = Path(tempfile.mkdtemp(prefix="megatrix-", dir=parent(root)))
    except OSError as error:
        raise LackError(f"no memory cgroup can be created: {error}") from None
    try:
        try:
            limit(folder, limit_bytes)
        except OSError as error:
            raise LackError(f"a memory cgroup rejects its limit: {error}") from None
        yield str(folder)
    finally:
        with suppress(OSError):  # busy while a killed process exits; an empty group costs nothing
            folder.rmdir()


def parent(root: Path) -> Path:
    """Return the parent of the new group: this process's own (v1), or the nearest that delegates memory (v2).

    Raises LackError if there is none.
    """
    for controller, mounted, group in memberships(root):
        if controller:
            return group if group.is_dir() else mounted  # a container may see its own group as the root
        for folder in (group, *group.parents):
            delegated = folder / "cgroup.subtree_control"
            if delegated.is_file() and re.search(r"\bmemory\b", delegated.read_text()) and os.access(folder, os.W_OK):
                return folder
            if folder == mounted:
                break
    raise LackError("no memory cgroup is usable: neither a v1 controller nor a v2 group that delegates memory")


def limit(folder: Path, limit_bytes: int) -> None:
    """Set the limit of a group. Raises OSError."""
    name = next((name for name in LIMITS if (folder / name).exists()), LIMITS[-1])
    (folder / name).write_text(str(limit_bytes), encoding="ascii")
    for name, value in WITH_SWAP.items():
        if (folder / name).exists():  # missing if the kernel does not account for swap
            (folder / name).write_text(str(limit_bytes if value is None else value), encoding="ascii")
