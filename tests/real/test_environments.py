"""tox makes the environments of a parallel run one after another."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from matrix.prove.provision.indexes import site_environment
from tests.real.conftest import COMMAND_S, ROOT

# Two of the same packages, and one of others; none has torch.
NAMES = ("megatrix", "nightly", "no-torch")


def make(folder: Path, *, indexes: str = "") -> subprocess.CompletedProcess[str]:
    """Make the environments at once, with an empty cache of uv; `indexes` replaces the site's."""
    command = [sys.executable, "-m", "tox", "run-parallel", "--parallel-no-spinner", "-p", "3", "--notest"]
    command += ["-c", str(ROOT / "tox.ini"), "--workdir", str(folder / "tox"), "-e", ",".join(NAMES)]
    own = {"UV_CACHE_DIR": str(folder / "uv"), **({"UV_DEFAULT_INDEX": indexes, "UV_INDEX": ""} if indexes else {})}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TOX_")}
    environ = {**inherited, **site_environment(), **own}
    return subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=COMMAND_S, check=False
    )


def test_no_wheel_is_unpacked_twice(tmp_path: Path) -> None:
    """uv keeps a copy for each process that unpacks a wheel at the same time."""
    done = make(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    records = (tmp_path / "uv").glob("archive-*/*/*.dist-info/RECORD")
    unpacked = Counter((record.parent.name, record.read_bytes()) for record in records)
    assert unpacked
    assert [name for (name, _), count in unpacked.items() if count > 1] == []


def test_failed_installations_pass_the_turn_on(tmp_path: Path) -> None:
    """Each environment fails with uv's reason; none waits for ever."""
    done = make(tmp_path, indexes="file:///nonexistent")
    assert done.returncode != 0
    assert all(f"{name}: FAIL" in done.stdout for name in NAMES), done.stdout + done.stderr
