"""Find and end the descendants of a process. Linux only: reads /proc."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LEAVE_S: Final = 0.25  # s for processes that end with their rank: multiprocessing's resource tracker took 15 ms
TRACKER_S: Final = 2.0  # s for a resource tracker to end after all others: 0.4 s while it starts on a busy machine
KILL_S: Final = 0.5  # s for killed processes to exit: 40 of them took 3 ms, one with 1 GiB took 80 ms
LOOKS: Final = 10  # attempts to get a picture that is not torn; 2 were always enough


@dataclass(frozen=True)
class Picture:
    """The processes of the machine: the parent of each, and those that run. The others are zombies.

    Reading /proc takes time. `torn`: the parent of a process is missing, because it ended between the two reads; the
    descendants of that parent can then not be found from the root.
    """

    parents: Mapping[int, int]
    running: frozenset[int]
    torn: bool = False

    def below(self, root: int) -> set[int]:
        """Return the running descendants of `root`."""
        children: dict[int, list[int]] = {}
        for pid, parent in self.parents.items():
            children.setdefault(parent, []).append(pid)
        descendants: set[int] = set()
        queue = [root]
        while queue:
            fresh = [pid for pid in children.get(queue.pop(), ()) if pid not in descendants and pid != root]
            descendants.update(fresh)
            queue += fresh
        return descendants & self.running


def look(proc: Path = Path("/proc")) -> Picture:
    """Read every process of the machine.

    /proc/PID/task/TID/children lists the children of one process, but some kernels lack it.
    """
    parents = {}
    running = set()
    for name in os.listdir(proc):  # noqa: PTH208  (runs for every case: Path objects double the time)
        if name.isdigit():
            # A process that ends while it is read is skipped.
            with contextlib.suppress(OSError), open(f"{proc}/{name}/stat", "rb") as stat:  # noqa: PTH123  (as above)
                # The command, in parentheses, may contain any character, including ")".
                state, parent = stat.read().rpartition(b")")[2].split(None, 2)[:2]
                parents[int(name)] = int(parent)
                if state not in (b"Z", b"X"):
                    running.add(int(name))
    return Picture(parents, frozenset(running), any(_gone(pid) for pid in set(parents.values()) - parents.keys()))


def _gone(pid: int) -> bool:
    """Return whether no such process exists; one in another namespace (0) or of another user is only hidden."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def end_below(
    root: int,
    *,
    leave_s: float = LEAVE_S,
    kill_s: float = KILL_S,
    look: Callable[[], Picture] = look,
    spared: Collection[int] = (),
) -> int:
    """Kill every descendant of `root`, including new ones, without those `spared`; return how many were killed.

    Descendants get `leave_s` seconds to end by themselves, resource trackers TRACKER_S more. Gives up `kill_s` seconds
    later: a process in uninterruptible sleep survives SIGKILL until its device responds.
    """

    def below() -> set[int]:
        for _ in range(LOOKS):
            picture = look()
            if not picture.torn:
                break
        return picture.below(root).difference(spared)

    alive = below()
    if alive and leave_s:
        wait_for(alive, leave_s)
        alive = below()
    killed: set[int] = set()
    spare: Callable[[int], bool] = is_tracker
    give_up = time.monotonic() + kill_s
    while alive and time.monotonic() < give_up:
        if doomed := {pid for pid in alive if not spare(pid)}:
            for pid in doomed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed |= doomed
            wait_for(doomed, give_up - time.monotonic())
        else:  # only trackers are left
            wait_for(alive, TRACKER_S)
            spare, give_up = (lambda pid: False), time.monotonic() + kill_s
        alive = below()
    return len(killed)


def is_tracker(pid: int) -> bool:
    """Return whether a process is a resource tracker of multiprocessing.

    It removes the named semaphores of its ranks from /dev/shm when the last of their processes has ended.
    """
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def wait_for(pids: Iterable[int], limit_s: float) -> None:
    """Return when all of `pids` have ended, or after `limit_s` seconds."""
    waiting = set()
    poll = select.poll()
    give_up = time.monotonic() + limit_s
    try:
        for pid in pids:
            with contextlib.suppress(OSError):  # already ended, or a kernel before 5.3
                handle = os.pidfd_open(pid)
                waiting.add(handle)
                poll.register(handle, select.POLLIN)
        while waiting and (limit := give_up - time.monotonic()) > 0:
            for handle, _ in poll.poll(limit * 1000):
                poll.unregister(handle)
                waiting.discard(handle)
                os.close(handle)
    finally:
        for handle in waiting:
            os.close(handle)
