"""What shows the stacks of ranks that are about to be stopped: py-spy, a signal handler, the kernel."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path


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
