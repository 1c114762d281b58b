"""One process at a time works on a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from matrix.ground.errors import MatrixError
from matrix.prove.provision.project import ROOT
from matrix.prove.store.stored_run import RunLock

HOLDER = """
import subprocess, sys, time
from pathlib import Path
from matrix.prove.store.stored_run import RunLock
held = RunLock(Path(sys.argv[1]))
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


def test_second_holder_is_refused_with_the_pid(tmp_path: Path) -> None:
    with RunLock(tmp_path), pytest.raises(MatrixError, match="another process works on this run") as caught:
        RunLock(tmp_path)
    assert f"process {os.getpid()} on " in str(caught.value.got)
    assert f"kill -INT {os.getpid()}" in str(caught.value.fix)
    RunLock(tmp_path).release()


def test_kill_9_frees_a_run(tmp_path: Path) -> None:
    """A child of the holder lives on and does not hold it."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        with pytest.raises(MatrixError, match="another process"):
            RunLock(tmp_path)
        holder.kill()
        holder.wait()
        RunLock(tmp_path).release()
        os.kill(child, 9)


def test_lock_holds_no_secrets_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PASSWORD", "hunter3-hunter3")
    monkeypatch.setattr(sys, "argv", ["megatrix", "bisect", "--", "run", "--password", "hunter2", "hunter3-hunter3"])
    with RunLock(tmp_path):
        file = tmp_path / "run.lock"
        assert json.loads(file.read_text())["command"] == "megatrix bisect -- run --password [masked] [masked]"
        assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", ["", "no JSON", "[]", "{}"])
def test_holder_without_a_name_is_refused(tmp_path: Path, content: str) -> None:
    with RunLock(tmp_path):
        (tmp_path / "run.lock").write_text(content)
        with pytest.raises(MatrixError, match="a process that has just started"):
            RunLock(tmp_path)


def test_lock_that_is_no_file_raises(tmp_path: Path) -> None:
    (tmp_path / "run.lock").mkdir()
    with pytest.raises(MatrixError, match="can't be written"):
        RunLock(tmp_path)
