"""Processes end with the process that started them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest

from matrix.prove.provision.project import ROOT
from matrix.read.kernel import PARENT, follow


def test_a_process_dies_with_its_parent() -> None:
    """Also by kill -9, which leaves the parent no time to end it."""
    child = "import os, time; from matrix.read.kernel import die_with_parent as die; die({pid}); print(os.getpid(), flush=True); time.sleep(600)"  # noqa: E501
    code = f"import os, subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}.format(pid=os.getpid())])"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        ended = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    try:
        assert select.select([ended], [], [], 20)[0]
    finally:
        os.close(ended)


def test_a_dead_parent_ends_the_process_at_once() -> None:
    code = "from matrix.read.kernel import die_with_parent; die_with_parent(1 << 30); print('still here')"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (1, "")


@pytest.mark.parametrize("environ", [{}, {PARENT: "1073741824"}])
def test_only_the_child_of_a_run_follows(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What a shell or nohup started outlives it."""
    monkeypatch.setattr("matrix.read.kernel._prctl", lambda *_: pytest.fail("a signal was requested"))
    follow(environ, signal.SIGTERM)
