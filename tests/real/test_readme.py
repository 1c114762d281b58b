"""The commands of README.md that install something, in a copy of this checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from matrix.prove.provision.indexes import site_environment
from tests.founding import BEHIND_MPI, SAVE
from tests.real.conftest import COMMAND_S, ROOT

BLOCKS = re.findall(r"\n\n((?:    .*\n)+)", (ROOT / "README.md").read_text())
# A night takes minutes: this part of it, seconds.
PART = f"-- --level contract --within 'failure=={BEHIND_MPI}'"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of this checkout, without what runs and tools have written there."""
    copy = tmp_path_factory.mktemp("checkout") / "megatrix"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "reports", "__pycache__"))
    return copy


def run(checkout: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script with its own venv, if it has been made, before this environment."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MEGATRIX_", "TOX_", "VIRTUAL"))}
    path = os.pathsep.join(map(str, (checkout / "venv" / "bin", Path(sys.executable).parent, os.environ["PATH"])))
    return subprocess.run(
        ["bash", "-ec", script], cwd=checkout, env={**kept, **site_environment(), "PATH": path},
        capture_output=True, text=True, timeout=COMMAND_S, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("first", [pytest.param("uvx --from .", marks=pytest.mark.change), "python3 -m venv"])
def test_first_answer_of_the_readme(checkout: Path, first: str) -> None:
    (script,) = (block for block in BLOCKS if block.startswith(f"    {first}"))
    done = run(checkout, script)
    assert f"WILL BREAK: {SAVE}: " in done.stdout, done.stderr
    assert done.returncode == 1


def test_night_of_the_readme(checkout: Path, tmp_path: Path) -> None:
    (line,) = (line for block in BLOCKS for line in block.splitlines() if "run -e nightly " in line)
    done = run(checkout, f"python3 -m venv venv; . venv/bin/activate; {line.partition('#')[0].rstrip()} {PART}")
    assert "GREEN: nothing is red" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0
