"""The processes below a process, and how they are ended. Linux: /proc is read."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LEAVE_S: Final = 0.25  # s for what ends with its rank by itself: multiprocessing's resource tracker took 15 ms
KILL_S: Final = 0.5  # s for killed processes to be gone: 40 of them took 3 ms, one that held 1 GiB 80 ms
LOOKS: Final = 10  # at most, for a picture that is not torn; 2 did whenever 1 did not


@dataclass(frozen=True)
class Picture:
    """The processes of the machine: each one's parent, and which of them run. The others are zombies.

    It is not taken in an instant. `torn`: a process has a parent that is not in the picture, for it ended between the
    look at the one and the look at the other; what is below it then seems to be below nobody.
    """

    parents: Mapping[int, int]
    running: frozenset[int]
    torn: bool = False

    def below(self, root: int) -> set[int]:
        """Return the running descendants of `root`."""
        children: dict[int, list[int]] = {}
        for pid, parent in self.parents.items():
            children.setdefault(parent, []).append(pid)
        found: set[int] = set()
        queue = [root]
        while queue:
            fresh = [pid for pid in children.get(queue.pop(), ()) if pid not in found and pid != root]
            found.update(fresh)
            queue += fresh
        return found & self.running


def look(proc: Path = Path("/proc")) -> Picture:
    """Look at every process of the machine.

    /proc/PID/task/TID/children would name those of one process, but not every kernel has it.
    """
    parents = {}
    running = set()
    for name in os.listdir(proc):  # noqa: PTH208  (for every case: Path objects would double the time)
        if name.isdigit():
            # One that ends while it is looked at needs no ending.
            with contextlib.suppress(OSError), open(f"{proc}/{name}/stat", "rb") as stat:  # noqa: PTH123  (as above)
                # The command, in parentheses, may hold anything, a ")" too.
                state, parent = stat.read().rpartition(b")")[2].split(None, 2)[:2]
                parents[int(name)] = int(parent)
                if state not in (b"Z", b"X"):
                    running.add(int(name))
    return Picture(parents, frozenset(running), any(_gone(pid) for pid in set(parents.values()) - parents.keys()))


def _gone(pid: int) -> bool:
    """Return whether there is no such process; one in another namespace (0), or of another user, is only not shown."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def end_below(
    root: int, *, leave_s: float = LEAVE_S, kill_s: float = KILL_S, look: Callable[[], Picture] = look
) -> int:
    """Kill every descendant of `root`, also those born meanwhile; return how many had to be killed.

    Descendants get `leave_s` seconds to end by themselves. Gives up `kill_s` seconds later: a process in
    uninterruptible sleep outlives SIGKILL for as long as its device takes.
    """

    def below() -> set[int]:
        for _ in range(LOOKS):
            picture = look()
            if not picture.torn:
                break
        return picture.below(root)

    found = below()
    if found and leave_s:
        wait_for(found, leave_s)
        found = below()
    killed: set[int] = set()
    give_up = time.monotonic() + kill_s
    while found and time.monotonic() < give_up:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= found
        wait_for(found, give_up - time.monotonic())
        found = below()
    return len(killed)


def wait_for(pids: Iterable[int], limit_s: float) -> None:
    """Return when all of `pids` have ended, or after `limit_s` seconds."""
    waiting = set()
    poll = select.poll()
    give_up = time.monotonic() + limit_s
    try:
        for pid in pids:
            with contextlib.suppress(OSError):  # gone already, or a kernel before 5.3: look again at once
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
