"""Stacks of ranks that are about to be stopped: from faulthandler, py-spy and the kernel."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from matrix.verdicts.outcome import Frame

# faulthandler: 'Current thread 0x00007f... (most recent call first):' and '  File "x.py", line 3 in main'.
# Since Python 3.14 a thread's name follows its number.
THREAD: Final = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$", re.MULTILINE)
PLACE: Final = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


def innermost(text: str) -> Frame | None:
    """Return the innermost frame of the main thread in the output of faulthandler; None when it has none.

    The main thread is the one that ran when the signal arrived ("Current"), or else the last: faulthandler prints the
    oldest last.
    """
    threads = list(THREAD.finditer(text))
    for thread in [found for found in threads if found[1] == "Current thread"] or threads[-1:]:
        place = PLACE.search(text, thread.end())
        if place:
            return Frame(place[1], int(place[2]), place[3])
    return None


def spy_on(pids: Sequence[int]) -> list[subprocess.Popen[bytes]]:
    """Start `py-spy dump` on each process, output to a pipe; start nothing where py-spy is not on PATH.

    It does not need the process's cooperation, so it also reports one that blocks signals. It may need root (ptrace).
    """
    spy = shutil.which("py-spy")
    if spy is None:
        return []
    return [
        subprocess.Popen([spy, "dump", "--pid", str(pid)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for pid in pids
    ]


def answers(pid: int, number: signal.Signals = signal.SIGUSR1, proc: Path = Path("/proc")) -> bool:
    """Return whether a process has a handler for a signal; a signal without one would kill it."""
    try:
        caught = re.search(r"^SigCgt:\t([0-9a-f]+)$", (proc / str(pid) / "status").read_text(), re.MULTILINE)
    except OSError:
        return False
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def kernel_view(pid: int, proc: Path = Path("/proc")) -> str:
    """Return the kernel's report on an unresponsive process: state, blocked signals, wait channel."""
    try:
        status = dict(re.findall(r"^(\w+):\t(.*)$", (proc / str(pid) / "status").read_text(), re.MULTILINE))
        channel = (proc / str(pid) / "wchan").read_text()
    except OSError:
        return "the process is gone"
    return f"state {status.get('State')}, blocked signals {status.get('SigBlk')}, waits in {channel or '?'}"
