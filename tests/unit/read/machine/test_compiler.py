"""The CUDA compiler of this machine, and the variables of a build."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from matrix.read.commands import CommandResult
from matrix.read.machine import installed


def test_compiler_is_asked_once_for_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[str]] = []

    def run(command: Sequence[str]) -> CommandResult:
        asked.append(command)
        return CommandResult(0, "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 13.0, V13.0.88")

    monkeypatch.setattr(installed, "run", run)
    monkeypatch.setattr(installed, "nvcc", lambda: "/of/this/test/nvcc")
    assert {installed.nvcc_version() for _ in range(3)} == {"13.0"}
    assert asked == [["/of/this/test/nvcc", "--version"]]


def test_no_compiler_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "nvcc", lambda: None)
    assert installed.nvcc_version() == "none"


def test_bundle_has_sources_of_some_releases(tmp_path: Path) -> None:
    """Without a bundle the index has them."""
    (tmp_path / "transformer_engine_torch-1.10.0.tar.gz").touch()
    (tmp_path / "transformer_engine-1.9.0-py3-none-any.whl").touch()
    assert installed.sources({"UV_OFFLINE": "1", "UV_FIND_LINKS": str(tmp_path)}) == frozenset({"1.10.0"})
    assert installed.sources({"UV_FIND_LINKS": str(tmp_path)}) is None


def test_variables_of_a_cell_reach_its_build() -> None:
    """A cell has them in one variable; one that is set beside it counts."""
    environ = {installed.PASSED: '{"MAX_JOBS": "2", "CUDA_HOME": "/a"}', "CUDA_HOME": "/b", "HOME": "/root"}
    assert installed.build_variables(environ) == {"CUDA_HOME": "/b", "MAX_JOBS": "2"}
