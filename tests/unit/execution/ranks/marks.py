"""Processes found by a mark in the environment they were started with, whoever their parent is by now."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

MARK = "MATRIX_TEST_MARK"


def marked(value: str) -> dict[int, str]:
    """Return the running processes that carry the mark, with their command lines. A fork carries it too."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if f"{MARK}={value}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def ranks_and_orphans(value: str) -> dict[int, str]:
    """Return those that are neither the fork-server nor multiprocessing's resource tracker.

    A rank in pooled mode has the fork-server's command line: it is told from it by its parent.
    """
    processes = marked(value)
    servers = {
        pid
        for pid, command in processes.items()
        if ("multiprocessing.forkserver" in command or "resource_tracker" in command) and parent(pid) not in processes
    }
    return {pid: command for pid, command in processes.items() if pid not in servers}


def parent(pid: int) -> int:
    """Return the parent's pid, 0 when the process is gone."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0
