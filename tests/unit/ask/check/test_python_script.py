"""The script that another interpreter runs: it prints one JSON object and needs the standard library alone."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from matrix.ask.check import python_script


def report(packages: Path) -> dict[str, object]:
    """Run the script by a Python that has these packages alone."""
    code = Path(python_script.__file__).read_text(encoding="utf-8")
    command = [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(packages)!r})\n{code}"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    facts: dict[str, object] = json.loads(output)
    return facts


def install(folder: Path, name: str, version: str, module: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / module).parent.mkdir(parents=True, exist_ok=True)


def test_python_without_packages_has_a_version(tmp_path: Path) -> None:
    assert report(tmp_path) == {"python": platform.python_version(), "packages": {}, "problems": []}


@pytest.mark.parametrize(("cuda", "expected"), [("'12.4'", "12.4"), ("None", "none")])
def test_torch_reports_cuda_and_mpi(tmp_path: Path, cuda: str, expected: str) -> None:
    install(tmp_path, "torch", "2.4.0", "torch/distributed.py")
    (tmp_path / "torch" / "__init__.py").write_text(f"class version:\n    cuda = {cuda}\n")
    (tmp_path / "torch" / "distributed.py").write_text(
        "def is_available():\n    return True\n\ndef is_mpi_available():\n    return True\n"
    )
    facts = report(tmp_path)
    assert (facts["packages"], facts["torch_cuda"], facts["torch_mpi"]) == ({"torch": "2.4.0"}, expected, True)


def test_a_failed_import_is_a_problem(tmp_path: Path) -> None:
    install(tmp_path, "transformer_engine", "2.2.0", "transformer_engine/pytorch.py")
    (tmp_path / "transformer_engine" / "pytorch.py").write_text("raise OSError('libcudart.so.12: not there')\n")
    facts = report(tmp_path)
    assert facts["problems"] == ["import transformer_engine: OSError: libcudart.so.12: not there"]
    assert "te_mpi" not in facts
