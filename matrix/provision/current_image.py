"""The image that one stands in: how it is known that one does, its Python, and what that holds."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from matrix.errors import MatrixError
from matrix.provision import interpreters
from matrix.provision.commands import Runner, run
from matrix.provision.installed import PythonEnvironment, packages_in

SAID: Final = "MEGATRIX_IN_PLACE"  # "1": this is an image, whatever it looks like; "0": make environments all the same
# What shows an image: files of podman, docker and Apptainer; variables, of podman (which leaves no file in a container
# that is read-only) and of NGC's PyTorch images. Enroot, which Slurm's Pyxis uses, leaves no file either and keeps the
# image's variables. Ours set MEGATRIX_IN_PLACE=1 (Containerfile).
FILES: Final = (Path("/run/.containerenv"), Path("/.dockerenv"), Path("/.singularity.d"))
VARIABLES: Final = ("container", "NVIDIA_PYTORCH_VERSION")
QUESTION: Final = "import json, sys; print(json.dumps(sys.path))"


@dataclass(frozen=True)
class CurrentImage:
    """An image's own Python, no virtual environment's, and what is installed for it; torch is."""

    interpreter: Path
    environment: PythonEnvironment


def find(
    environ: Mapping[str, str] = os.environ,
    executable: Path = Path(sys.executable),
    *,
    run: Runner = run,
    exists: Callable[[Path], bool] = Path.exists,
) -> CurrentImage | None:
    """Return the image that one stands in; None where it is none, or one whose Python has no torch.

    Looked at are the Pythons on PATH and `executable`, or what their virtual environments were made from: whoever
    starts tox in an image has it in an environment of its own. Raises MatrixError for a MEGATRIX_IN_PLACE that is
    neither 0 nor 1.
    """
    if not is_image(environ, exists):
        return None
    for python in dict.fromkeys(bases(environ, executable, run)):
        answer = run([str(python.path), "-I", "-c", QUESTION], seconds=interpreters.ANSWER_SECONDS)
        packages = packages_in(*json.loads(answer.out)) if answer.code == 0 else {}
        if "torch" in packages:
            return CurrentImage(python.path, PythonEnvironment(python.version, packages))
    return None


def is_image(environ: Mapping[str, str], exists: Callable[[Path], bool]) -> bool:
    """Say whether this is an image, by what somebody said or by what shows it."""
    said = environ.get(SAID, "")
    if said not in ("", "0", "1"):
        raise MatrixError(
            "not a yes or no", where=SAID, got=said, expected="1 (this is an image) or 0 (act as if it were none)"
        )
    return said == "1" or (not said and (any(map(exists, FILES)) or any(environ.get(name) for name in VARIABLES)))


def bases(environ: Mapping[str, str], executable: Path, run: Runner) -> Iterable[interpreters.Interpreter]:
    """Yield the interpreters that these Pythons are, or that their virtual environments were made from."""
    folders = [Path(folder) for folder in environ.get("PATH", "").split(os.pathsep) if folder]
    for candidate in (*(folder / "python3" for folder in folders), executable):
        if candidate.is_file() and (found := interpreters.ask(candidate, run, {})):
            yield found
