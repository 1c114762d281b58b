"""Find processes by a mark in their initial environment, independent of their parent."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from matrix.prove.execution.ranks import variables

MARK = "MATRIX_TEST_MARK"
variables.KEPT[MARK] = "the tests find the processes of a supervisor by it"


def marked(value: str) -> dict[int, str]:
    """Return the running processes with the mark, forks included, with their command lines."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if f"{MARK}={value}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def ranks_and_orphans(value: str) -> dict[int, str]:
    """Return the marked processes except the forkserver and multiprocessing's resource tracker.

    A rank in pooled mode has the forkserver's command line; its parent distinguishes it.
    """
    processes = marked(value)
    servers = {
        pid
        for pid, command in processes.items()
        if ("multiprocessing.forkserver" in command or "resource_tracker" in command) and parent(pid) not in processes
    }
    return {pid: command for pid, command in processes.items() if pid not in servers}


def parent(pid: int) -> int:
    """Return the parent's pid, 0 if the process has ended."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0
