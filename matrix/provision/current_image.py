"""The current image: detect whether this process runs in a container image, and read its Python and packages."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from matrix.catalog.machine import PythonEnvironment
from matrix.errors import MatrixError
from matrix.provision import interpreters
from matrix.provision.commands import Runner, python_code, run
from matrix.provision.installed import packages_in

SETTING: Final = "MEGATRIX_IN_PLACE"  # "1": this is an image; "0": it is not; unset: detect it
# Signs of an image: files of podman, docker and Apptainer; variables of podman (which writes no file into a read-only
# container) and of NGC's PyTorch images. Enroot, which Slurm's Pyxis uses, writes no file either and keeps the image's
# variables. Images built by this project set MEGATRIX_IN_PLACE=1 (Containerfile).
FILES: Final = (Path("/run/.containerenv"), Path("/.dockerenv"), Path("/.singularity.d"))
VARIABLES: Final = ("container", "NVIDIA_PYTORCH_VERSION")
QUESTION: Final = "import json, sys; print(json.dumps(sys.path))"


def find(
    environ: Mapping[str, str] = os.environ,
    executable: Path = Path(sys.executable),
    *,
    run: Runner = run,
    exists: Callable[[Path], bool] = Path.exists,
) -> PythonEnvironment | None:
    """Return the Python of the current image, not of a virtual environment, with its packages.

    None outside of an image, and in one whose Python has no torch.

    Candidates are the Pythons on PATH and `executable`, or the base interpreters of their virtual environments: tox is
    usually installed in a virtual environment. Raises MatrixError for a MEGATRIX_IN_PLACE that is
    neither 0 nor 1.
    """
    if not is_image(environ, exists):
        return None
    for python in {python.path: python for python in bases(environ, executable, run)}.values():
        result = run(python_code(str(python.path), QUESTION, options=("-I",)), seconds=interpreters.ANSWER_SECONDS)
        packages = packages_in(*json.loads(result.out)) if result.code == 0 else {}
        if "torch" in packages:
            return replace(python, packages=packages)
    return None


def is_image(environ: Mapping[str, str], exists: Callable[[Path], bool]) -> bool:
    """Return whether this is an image, by MEGATRIX_IN_PLACE or else by its signs."""
    setting = environ.get(SETTING, "")
    if setting not in ("", "0", "1"):
        raise MatrixError(
            "invalid value", where=SETTING, got=setting, expected="1 (this is an image) or 0 (this is not an image)"
        )
    return setting == "1" or (not setting and (any(map(exists, FILES)) or any(environ.get(name) for name in VARIABLES)))


def bases(environ: Mapping[str, str], executable: Path, run: Runner) -> Iterable[PythonEnvironment]:
    """Yield the base interpreters of the Pythons on PATH and of `executable`."""
    folders = [Path(folder) for folder in environ.get("PATH", "").split(os.pathsep) if folder]
    for candidate in (*(folder / "python3" for folder in folders), executable):
        if candidate.is_file() and (python := interpreters.identify(candidate, run, {})):
            yield python
