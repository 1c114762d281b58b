"""The processes below a process, and how they are ended. Linux: /proc is read."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

LEAVE_S: Final = 0.1  # s for what ends with its rank by itself (a resource tracker took 10 ms); beyond it: killed
KILL_S: Final = 0.5  # s for killed processes to be gone; the kernel took under 20 ms, more under memory pressure

Parents = Mapping[int, int]  # pid -> parent's pid


def parents(proc: Path = Path("/proc")) -> dict[int, int]:
    """Return the parent of every process of the machine; a zombie is no process any more.

    /proc/PID/task/TID/children would name them without reading every process, but not every kernel has it.
    """
    found = {}
    for name in os.listdir(proc):  # noqa: PTH208  (read in every case: Path objects would double the time)
        if name.isdigit():
            # A process may end while it is looked at; then it needs no ending.
            with contextlib.suppress(OSError), open(f"{proc}/{name}/stat", "rb") as stat:  # noqa: PTH123  (as above)
                # The command, in parentheses, may hold anything, a ")" too.
                state, parent = stat.read().rpartition(b")")[2].split(None, 2)[:2]
                if state not in (b"Z", b"X"):
                    found[int(name)] = int(parent)
    return found


def below(root: int, known: Parents) -> set[int]:
    """Return the descendants of `root`."""
    children: dict[int, list[int]] = {}
    for pid, parent in known.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    queue = [root]
    while queue:
        fresh = [pid for pid in children.get(queue.pop(), ()) if pid not in found and pid != root]
        found.update(fresh)
        queue += fresh
    return found


def end_below(
    root: int,
    *,
    leave_s: float = LEAVE_S,
    kill_s: float = KILL_S,
    look: Callable[[], Parents] = parents,
) -> int:
    """Kill every descendant of `root`, also those born meanwhile; return how many had to be killed.

    Descendants get `leave_s` seconds to end by themselves. Gives up `kill_s` seconds later: a process in
    uninterruptible sleep outlives SIGKILL for as long as its device takes.
    """
    found = below(root, look())
    if found and leave_s:
        wait_for(found, leave_s)
        found = below(root, look())
    killed: set[int] = set()
    give_up = time.monotonic() + kill_s
    while found and time.monotonic() < give_up:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= found
        wait_for(found, give_up - time.monotonic())
        found = below(root, look())
    return len(killed)


def wait_for(pids: Iterable[int], limit_s: float) -> None:
    """Return when all of `pids` have ended, or after `limit_s` seconds."""
    waiting = set()
    poll = select.poll()
    give_up = time.monotonic() + limit_s
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                handle = os.pidfd_open(pid)
                waiting.add(handle)
                poll.register(handle, select.POLLIN)
        while waiting and (left := give_up - time.monotonic()) > 0:
            for handle, _ in poll.poll(left * 1000):
                poll.unregister(handle)
                waiting.discard(handle)
                os.close(handle)
    finally:
        for handle in waiting:
            os.close(handle)
