"""A machine without NVIDIA's driver does without the packages that only a GPU uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement

from matrix.provision import gpu_only
from matrix.provision.gpu_only import EXCLUDE, PACKAGES, WITH_GPU_PACKAGES, has_driver, left_out


def test_a_driver_keeps_the_packages() -> None:
    assert left_out({}, driver=True) == {}
    assert left_out({}, driver=False) == {EXCLUDE: str(PACKAGES)}


@pytest.mark.parametrize("chosen", ["", "/my/own.txt"])
def test_a_user_s_own_choice_stays(chosen: str) -> None:
    assert left_out({EXCLUDE: chosen}, driver=False) == {}


def test_other_machines_get_the_packages() -> None:
    assert left_out({**WITH_GPU_PACKAGES}, driver=False) == {}


def test_nothing_is_left_out_below_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """uv 0.13 reads the variable as several files, and has no way to write a space."""
    monkeypatch.setattr(gpu_only, "PACKAGES", Path("/my project/gpu_only.txt"))
    assert left_out({}, driver=False) == {}


def test_driver_is_a_module_or_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """WSL and some containers have the library alone."""
    monkeypatch.setattr(gpu_only.nvml, "there", lambda: "libnvidia-ml.so.1: no such file")
    assert not has_driver(tmp_path)
    (tmp_path / "driver" / "nvidia").mkdir(parents=True)
    assert has_driver(tmp_path)
    monkeypatch.setattr(gpu_only.nvml, "there", lambda: "")
    assert has_driver(tmp_path / "empty")


def test_only_packages_that_torch_imports_late() -> None:
    """torch loads NVIDIA's libraries when it is imported, so none of them can be left out."""
    lines = [line.partition("#")[0].strip() for line in PACKAGES.read_text(encoding="utf-8").splitlines()]
    names = [Requirement(line).name for line in lines if line]
    assert names == ["triton"]
