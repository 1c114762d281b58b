"""tox ends its command in order, and prints how to continue, whatever signal it gets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.real.conftest import COMMAND_S, ROOT

# The command of an environment: a signal stops it in order, which takes a second, as ranks and journals do.
COMMAND = """
import os, sys, time
from matrix.prove.execution import interrupt
interrupt.once()
open(sys.argv[1], "w").write(str(os.getpid()))
try:
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(1)
    print("megatrix: interrupted; continue with: x", file=sys.stderr)
    sys.exit(130)
"""


@pytest.mark.parametrize(
    ("number", "group"),
    [
        pytest.param(signal.SIGINT, True, marks=pytest.mark.change),
        pytest.param(signal.SIGTERM, False, marks=pytest.mark.change),
        *((signal.SIGINT, False), (signal.SIGTERM, True), (signal.SIGHUP, True), (signal.SIGHUP, False)),
    ],
)
def test_signal_ends_tox_and_its_command(tmp_path: Path, number: signal.Signals, *, group: bool) -> None:
    """A terminal sends Ctrl-C to the group, `kill` a signal to tox alone; it may also be that of a closed terminal."""
    script, started = tmp_path / "command.py", tmp_path / "started"
    script.write_text(COMMAND)
    settings = ["-x", "testenv:megatrix.deps=", "-x", f"testenv:megatrix.commands=python {script} {started}"]
    words = [sys.executable, "-m", "tox", "run", "-e", "megatrix", "--workdir", str(tmp_path / "tox"), *settings]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TOX_")}
    process = subprocess.Popen(
        words, cwd=ROOT, env={**inherited, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )  # fmt: skip
    end = time.monotonic() + COMMAND_S
    while not (started.exists() and started.read_text()) and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)  # no event exists for a file
    (os.killpg if group else os.kill)(process.pid, number)
    printed = process.communicate(timeout=COMMAND_S)[0]
    assert "megatrix: interrupted; continue with: x" in printed
    assert process.returncode == 130
    assert not Path("/proc", started.read_text()).exists()


def test_unknown_line_is_refused() -> None:
    words = [sys.executable, "-m", "tox", "run", "-e", "te199"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    assert done.returncode != 0
    assert "te199 - did you mean te19?" in done.stdout + done.stderr
