"""A process stops in order at a signal, and when the process that started it dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from matrix.prove.provision.project import ROOT
from matrix.read import kernel

HANG_S = 30.0  # limit for hanging tests
# Prints its pid, then waits for a signal. It prints "stopped" after a clean-up that a second signal does not interrupt.
CHILD = """
import os, signal
from matrix.prove.execution import interrupt
interrupt.once()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
try:
    print(os.getpid(), flush=True)
    while not signal.sigtimedwait([signal.SIGUSR1], 0.1):
        pass  # a signal may arrive just before the wait
    print("not interrupted", flush=True)
except KeyboardInterrupt:
    os.kill(os.getpid(), signal.SIGTERM)
    print("stopped", flush=True)
"""
PARENT = """
import os, signal, subprocess, sys
named = {**os.environ, sys.argv[1]: str(os.getpid())}
subprocess.Popen([sys.executable, "-c", sys.argv[2]], env=named)
signal.pause()
"""


class Started:
    """A Python process with these arguments; `pid` is that of the child."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-c", *arguments]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self.process.stdout is not None
        self.pid = int(self.process.stdout.readline())

    def rest(self) -> str:
        """Return what is printed until every process has ended."""
        return self.process.communicate(timeout=HANG_S)[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_signal_interrupts_once(number: signal.Signals) -> None:
    """The child takes SIGHUP although the tests may run under nohup, which it would inherit."""
    started = Started(f"import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n{CHILD}")
    os.kill(started.pid, number)
    assert (started.rest(), started.process.returncode) == ("stopped\n", 0)


def test_nohup_keeps_a_process() -> None:
    started = Started(f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{CHILD}")
    os.kill(started.pid, signal.SIGHUP)
    os.kill(started.pid, signal.SIGUSR1)
    assert started.rest() == "not interrupted\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_process_follows_its_named_parent(number: signal.Signals) -> None:
    """tox and `matrix run` name themselves; a kill of either stops what it started."""
    started = Started(PARENT, kernel.PARENT, CHILD)
    started.process.send_signal(number)
    assert started.rest() == "stopped\n"


def test_process_outlives_a_parent_without_name() -> None:
    """What a shell started with `&` goes on after the shell."""
    started = Started(PARENT, "ANOTHER_NAME", CHILD)
    started.process.kill()
    started.process.wait()
    os.kill(started.pid, signal.SIGUSR1)
    assert started.rest() == "not interrupted\n"
