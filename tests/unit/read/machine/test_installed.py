"""What is read of a Python environment besides the versions of its packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.ground.cases.machine_requirements import BaseFeature
from matrix.read.machine.installed import FEATURES, NVCC, PASSED, at, features_in, here, packages_in


@pytest.mark.parametrize(
    ("file", "feature"),
    [
        ("torch/lib/libtorch_cuda.so", BaseFeature.CUDA),
        ("torch/lib/libtorch_cpu.so", None),
        ("transformer_engine_extensions.cpython-310-x86_64-linux-gnu.so", BaseFeature.COMPILED_TE),
        ("transformer_engine_torch.cpython-310-x86_64-linux-gnu.so", BaseFeature.COMPILED_TE),
        ("transformer_engine/transformer_engine_torch.cpython-312-x86_64-linux-gnu.so", BaseFeature.COMPILED_TE),
        ("transformer_engine/wheel_lib/transformer_engine_torch.cpython-312.so", BaseFeature.COMPILED_TE),
        ("transformer_engine/__init__.py", None),
        ("transformer_engine/libtransformer_engine.so", None),  # without its binding for torch
        ("pkg_resources/__init__.py", BaseFeature.PKG_RESOURCES),
    ],
)
def test_features_are_read_from_files(tmp_path: Path, file: str, feature: BaseFeature | None) -> None:
    site = tmp_path / "lib" / "python3.10" / "site-packages"
    (site / file).parent.mkdir(parents=True)
    (site / file).touch()
    (tmp_path / "pyvenv.cfg").write_text("version_info = 3.10.13.final.0\n")
    expected = [feature.value] if feature else []
    assert features_in("/nowhere", str(site)) == expected
    found = at(tmp_path)
    assert found is not None
    assert found.features == [*expected, *here()]


def test_package_without_metadata_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "gone-1.0.dist-info").mkdir()
    assert packages_in(str(tmp_path)) == {}


def test_nvcc_is_a_feature_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In CUDA_HOME, which a cell gets in a variable of this project."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").touch(mode=0o755)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv(PASSED, f'{{"CUDA_HOME": "{tmp_path}"}}')
    assert here() == [NVCC]
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    assert here() == []


def test_features_are_those_of_the_plan() -> None:
    assert [*FEATURES, NVCC] == [feature.value for feature in BaseFeature]
