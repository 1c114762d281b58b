"""The forkserver's own code ends with its owner."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from matrix.execution.ranks.forkserver_child import REQUEST
from matrix.provision.project import ROOT


def test_forkserver_ends_if_its_owner_died_at_start(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    os.mkfifo(tmp_path / "ranks" / "lifeline")  # without a reader
    request: dict[str, object] = {
        "lifeline": str(tmp_path / "ranks" / "lifeline"),
        "path": [],
        "modules": [],
    }
    done = subprocess.run(
        [sys.executable, "-c", "import matrix.execution.ranks.forkserver_child"],
        env={**os.environ, REQUEST: json.dumps(request), "PYTHONPATH": str(ROOT)},
        timeout=60.0,
    )
    assert done.returncode == 1
    assert not (tmp_path / "ranks").exists()
