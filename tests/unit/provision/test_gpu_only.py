"""A machine without NVIDIA's driver does without the packages that only a GPU uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.provision.gpu_only import EXCLUDE, WITH_GPU_PACKAGES, has_driver, left_out
from matrix.provision.nvidia import nvml


def test_a_driver_keeps_the_packages(tmp_path: Path) -> None:
    file = tmp_path / "work" / "names.txt"
    assert left_out(["triton"], file, {}, driver=True) == {}
    assert not file.exists()
    assert left_out(["triton", "nvidia-cusolver"], file, {}, driver=False) == {EXCLUDE: str(file)}
    assert file.read_text(encoding="utf-8").split() == ["triton", "nvidia-cusolver"]


@pytest.mark.parametrize("environ", [{EXCLUDE: ""}, {EXCLUDE: "/my/own.txt"}, {**WITH_GPU_PACKAGES}])
def test_an_earlier_choice_stays(tmp_path: Path, environ: dict[str, str]) -> None:
    """The user's, or that of a run on a cluster."""
    assert left_out(["triton"], tmp_path / "names.txt", environ, driver=False) == {}


def test_nothing_is_left_out_below_spaces(tmp_path: Path) -> None:
    """uv 0.13 reads the variable as several files, and has no way to write a space."""
    assert left_out(["triton"], tmp_path / "my project" / "names.txt", {}, driver=False) == {}
    assert left_out([], tmp_path / "names.txt", {}, driver=False) == {}


def test_driver_is_a_module_or_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """WSL and some containers have the library alone."""
    monkeypatch.setattr(nvml, "there", lambda: "libnvidia-ml.so.1: no such file")
    assert not has_driver(tmp_path)
    (tmp_path / "driver" / "nvidia").mkdir(parents=True)
    assert has_driver(tmp_path)
    monkeypatch.setattr(nvml, "there", lambda: "")
    assert has_driver(tmp_path / "empty")
