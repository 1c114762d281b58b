"""Detect the current image and its own Python."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from matrix.catalog.machine import PythonEnvironment
from matrix.errors import MatrixError
from matrix.provision.commands import CommandResult
from matrix.provision.current_image import find

IN = {"MEGATRIX_IN_PLACE": "1"}


class Pythons:
    """Fake interpreters: `bases` maps each to its base interpreter, `sites` a base to its packages folder."""

    def __init__(self, bases: Mapping[Path, Path], sites: Mapping[Path, Path]) -> None:
        self.bases, self.sites, self.runs = bases, sites, 0

    def __call__(
        self, command: Sequence[str], *, environment: Mapping[str, str] | None = None, seconds: float | None = None
    ) -> CommandResult:
        self.runs += 1
        python = Path(command[0])
        if "_base_executable" in command[-1]:
            return CommandResult(0, f"cpython 3.13.5 {self.bases[python]}\n")
        return CommandResult(0, json.dumps([str(self.sites[python])]))


class Image:
    """An image: its own Python, and a virtual environment of it on PATH."""

    def __init__(self, folder: Path, *packages: str) -> None:
        self.own, self.venv = folder / "usr" / "python3", folder / "venv" / "python3"
        for python in (self.own, self.venv):
            python.parent.mkdir()
            python.touch()
        site = folder / "site"
        for package in packages:
            info = site / f"{package.replace('==', '-')}.dist-info"
            info.mkdir(parents=True)
            name, _, version = package.partition("==")
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        self.pythons = Pythons({self.own: self.own, self.venv: self.own}, {self.own: site})

    def find(self, environ: Mapping[str, str], *files: str) -> PythonEnvironment | None:
        """Return the image as found from its virtual environment."""
        path = {"PATH": f"{self.venv.parent}:{self.own.parent}"}
        return find({**path, **environ}, self.venv, run=self.pythons, exists=lambda file: str(file) in files)


def test_the_image_python_is_found_from_a_venv(tmp_path: Path) -> None:
    image = Image(tmp_path, "torch==2.6.0", "numpy==2.2.4")
    found = image.find(IN)
    assert found is not None
    assert found.path == image.own
    assert (found.python, found.packages) == ("3.13.5", {"torch": "2.6.0", "numpy": "2.2.4"})


@pytest.mark.parametrize(
    ("environ", "files", "expected"),
    [
        ({}, (), False),
        ({}, ("/run/.containerenv",), True),
        ({}, ("/.dockerenv",), True),
        ({"container": "podman"}, (), True),
        ({"NVIDIA_PYTORCH_VERSION": "24.07"}, (), True),
        ({"MEGATRIX_IN_PLACE": "1"}, (), True),
        ({"MEGATRIX_IN_PLACE": "0"}, ("/.dockerenv",), False),
    ],
)
def test_an_image_is_detected_by_its_signs(
    tmp_path: Path, environ: dict[str, str], files: tuple[str, ...], expected: bool
) -> None:
    image = Image(tmp_path, "torch==2.6.0")
    assert expected is (image.find(environ, *files) is not None)
    assert expected is (image.pythons.runs > 0)  # outside of an image no interpreter is started


def test_an_image_without_torch_is_ignored(tmp_path: Path) -> None:
    assert Image(tmp_path, "numpy==2.2.4").find(IN) is None


def test_an_invalid_setting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="MEGATRIX_IN_PLACE"):
        Image(tmp_path).find({"MEGATRIX_IN_PLACE": "maybe"})
