"""The environment of a bundle on hosts whose Python is in a virtual environment: real ones, without pip."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from matrix.prove.provision.project import ROOT
from matrix.read.commands import python_code

MAKE = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from matrix.prove.provision.bundle_folder import make_environment
make_environment(Path(sys.argv[2]), os.environ, visible=True)
"""
NAMES = ("first", "second", "edited")


def environment(python: Path, home: Path, *options: str) -> Path:
    """Return the Python of a virtual environment that another Python makes."""
    subprocess.run([python, "-m", "venv", "--without-pip", *options, home], check=True)
    return home / "bin" / "python"


def add(python: Path, name: str, folder: Path | None = None) -> None:
    """Add a module to an environment, by a .pth file where it is in another folder, as an editable installation is."""
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    if folder:
        folder.mkdir()
        (packages / f"{name}.pth").write_text(f"{folder}\n")
    ((folder or packages) / f"{name}.py").touch()


def seen(python: Path) -> list[str]:
    """Return the modules of NAMES that a Python finds."""
    code = f"from importlib.util import find_spec; print(*filter(find_spec, {NAMES}))"
    return subprocess.run(python_code(python, code), check=True, capture_output=True, text=True).stdout.split()


@pytest.mark.parametrize("options", [(), ("--system-site-packages",)])
def test_packages_of_a_virtual_environment_are_seen(options: Sequence[str], tmp_path: Path) -> None:
    """As for the Python that starts start.py, and for the one that this environment starts."""
    first = environment(Path(sys.executable), tmp_path / "first")
    add(first, "first")
    second = environment(first, tmp_path / "second", *options)
    add(second, "second")
    add(second, "edited", tmp_path / "source")
    for python, home in ((second, tmp_path / "made"), (tmp_path / "made" / "bin" / "python", tmp_path / "again")):
        subprocess.run(python_code(python, MAKE, str(ROOT), str(home)), check=True)
        assert seen(home / "bin" / "python") == seen(python) == ["second", "edited"]
