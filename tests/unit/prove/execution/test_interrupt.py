"""A process stops in order at a signal, and when the process that started it dies; tox does so as its commands do."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys

import pytest

from matrix.prove.execution.interrupt import called
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


# As toxfile.py: a tox that provisions waits for its command, another one stops it at KeyboardInterrupt.
TOX = """
import subprocess, sys
from matrix.prove.execution import interrupt
interrupt.once_in_tox(provisions=sys.argv[2] == "provisions")
try:
    child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
    child.wait()
    subprocess.run([sys.executable, "-c", "print('the next command')"])
except KeyboardInterrupt:
    child.send_signal(2)
    child.wait()
print("the report of tox")
sys.exit(254)
"""
COMMAND = """
import os, time
from matrix.prove.execution import interrupt
interrupt.once()
try:
    print(os.getppid(), flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    interrupt.leave_hint("interrupted; continue with: x")
    raise SystemExit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("kind", ["provisions", "runs"])
def test_tox_ends_with_the_hint_of_its_command(kind: str, number: signal.Signals) -> None:
    """Its command has ended before it, and it starts no other."""
    tox = Started(f"import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n{TOX}", COMMAND, kind)
    tox.process.send_signal(number)
    assert tox.rest() == "the report of tox\nmegatrix: interrupted; continue with: x\n"
    assert tox.process.returncode == 130


def test_provisioning_tox_forwards_every_signal() -> None:
    """The first may come before the command has a handler."""
    second = "signal.signal(2, signal.SIG_DFL), os.write(1, b'1\\n')"  # print may be interrupted, and refuses another
    command = f"import os, signal, time; signal.signal(2, lambda *_: ({second})); print(os.getppid(), flush=True)"
    tox = Started(TOX, f"{command}\ntime.sleep(600)", "provisions")
    assert tox.process.stdout
    tox.process.send_signal(signal.SIGTERM)
    assert tox.process.stdout.readline() == "1\n"
    tox.process.send_signal(signal.SIGTERM)
    assert "continue with: " in tox.rest()
    assert tox.process.returncode == 130


def test_tox_without_a_command_prints_its_own_line() -> None:
    """Before a run exists the same command line continues."""
    arguments = [TOX, "import os, time; print(os.getppid(), flush=True); time.sleep(600)", "runs"]
    tox = Started(*arguments)
    os.kill(tox.pid, signal.SIGTERM)
    assert tox.rest().endswith(f"continue with: {shlex.join([sys.executable, '-c', *arguments])}\n")
    assert tox.process.returncode == 130


@pytest.mark.parametrize(
    ("command", "start"),
    [
        ("python3 -m tox run -e nightly", "python3 -m tox"),
        ("/venv/bin/python -P -m tox run -e nightly", "/venv/bin/python -P -m tox"),
        ("/venv/bin/python /venv/bin/tox run -e nightly", "/venv/bin/tox"),
        ("/usr/bin/python3 /usr/bin/tox run -e nightly", "tox"),
    ],
)
def test_command_of_tox_as_the_user_called_it(command: str, start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", {"tox": "/usr/bin/tox"}.get)
    assert called(command.split(), ["run", "-e", "nightly"]) == start
