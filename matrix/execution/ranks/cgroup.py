"""A memory cgroup for one job: made before its ranks start, removed when none of them is left."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from matrix.execution.ranks.memory import LIMITS, MEMBERSHIP, available
from matrix.kit.rank import LackError

# A job that swaps is slow where it is to be killed.
WITH_SWAP: Final = {"memory.memsw.limit_in_bytes": None, "memory.swap.max": 0}  # None: the limit itself


@contextmanager
def memory_group(limit_bytes: int | None, root: Path = Path("/")) -> Iterator[str]:
    """Make a group of at most `limit_bytes`, yield its folder ("" for None). Raises LackError where none can be made.

    A group whose owner is killed by SIGKILL stays, empty.
    """
    if limit_bytes is None:
        yield ""
        return
    left = available(root)
    if left is not None and limit_bytes > left:
        raise LackError(f"needs {limit_bytes >> 20} MiB of memory to be limited to; {left >> 20} are available here")
    try:
        folder = Path(tempfile.mkdtemp(prefix="megatrix-", dir=parent(root)))
    except OSError as error:
        raise LackError(f"no memory cgroup can be made here: {error}") from None
    try:
        try:
            limit(folder, limit_bytes)
        except OSError as error:
            raise LackError(f"a memory cgroup takes no limit here: {error}") from None
        yield str(folder)
    finally:
        with suppress(OSError):  # busy while a killed process goes; empty, it costs nothing
            folder.rmdir()


def parent(root: Path) -> Path:
    """Return the group to make one below: this process's own (v1), the nearest that hands memory on (v2).

    Raises LackError.
    """
    membership = root / "proc/self/cgroup"
    groups = MEMBERSHIP.findall(membership.read_text(encoding="utf-8")) if membership.is_file() else []
    for controller, path in groups:
        mounted: Path = root / "sys/fs/cgroup" / controller
        own: Path = mounted / path.lstrip("/")
        if controller:
            return own if own.is_dir() else mounted  # a container may see its own group as the root
        for folder in (own, *own.parents):
            handed_on = folder / "cgroup.subtree_control"
            if handed_on.is_file() and re.search(r"\bmemory\b", handed_on.read_text()) and os.access(folder, os.W_OK):
                return folder
            if folder == mounted:
                break
    raise LackError("no memory cgroup is in reach here: neither v1's controller nor a v2 group that hands memory on")


def limit(folder: Path, limit_bytes: int) -> None:
    """Set the limit of a group. Raises OSError."""
    name = next((name for name in LIMITS if (folder / name).exists()), LIMITS[-1])
    (folder / name).write_text(str(limit_bytes), encoding="ascii")
    for name, value in WITH_SWAP.items():
        if (folder / name).exists():  # not where the kernel does not count swap
            (folder / name).write_text(str(limit_bytes if value is None else value), encoding="ascii")
