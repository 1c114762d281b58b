"""A command is bisected over commits whose extension is compiled, in an environment of wheels."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.read.machine.installed import nvcc
from tests import compiled

if nvcc() is None:
    pytest.skip("no nvcc", allow_module_level=True)


def test_the_compiled_culprit_is_found(tmp_path: Path) -> None:
    """By nvcc, which links a library that the command loads."""
    clone = compiled.clone(tmp_path / "c.git")
    report = compiled.bisect(tmp_path / "out", clone, "--torch", "2.4.0")
    compiled.check(report, clone, "does not build: got transformer_engine/common/kernel.cu(3): error: expected")
