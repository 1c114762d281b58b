"""A command is bisected over commits whose extension nvcc compiles: in an environment of wheels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from matrix.provision.helpers import nvcc
from tests import compiled
from tests.real.conftest import COMMAND_S, ROOT
from tests.schemas import items_of

if nvcc() is None:
    pytest.skip("no nvcc", allow_module_level=True)


def bisect(out: Path, clone: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    line = [sys.executable, "-m", "matrix", "bisect", "--axis", "te", "--repo", str(clone), "--good", compiled.GOOD]
    line += ["--bad", compiled.BAD, "--compile", *options, "--json", "--out", str(out)]
    done = subprocess.run(
        [*line, "--", "python3", "-c", compiled.COMMAND],
        cwd=ROOT, capture_output=True, text=True, timeout=COMMAND_S, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, items_of(done.stdout, "bisect")[0], done.stderr


def test_the_compiled_culprit_is_found(tmp_path: Path) -> None:
    """Commits of docs and tests are left out; the one that does not build is a skip with nvcc's message."""
    clone = compiled.clone(tmp_path / "c.git")
    status, report, printed = bisect(tmp_path / "out", clone, "--torch", "2.4.1")

    assert (status, report["kind"], report["label"].split()[-1]) == (0, "first-bad", compiled.CULPRIT), printed
    assert any("3 of them left out" in note for note in report["notes"])
    (skip,) = (probe for probe in report["probes"] if probe["seen"] == "skip")
    assert skip["label"].split()[-1] == compiled.BREAKS
    assert "does not build: got transformer_engine/common/kernel.cu(3): error: expected" in skip["why"]
    assert all(f"--te {clone}@{probe['point']} --compile" in probe["reproduce"] for probe in report["probes"])
