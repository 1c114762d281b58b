"""Find the Python interpreters of this machine that run, by minor version. They are downloaded elsewhere."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from matrix.ground.catalog.machine import PythonEnvironment
from matrix.ground.errors import MatrixError
from matrix.read.commands import Runner, python_code, run

# Seconds. An interpreter starts in 10-20 ms, a pyenv shim in 0.1-0.2 s (2 cores); 10 s is for a cold network disk.
ANSWER_SECONDS = 10.0

# The base interpreter, not that of an active virtual environment, which environments must outlive.
QUESTION = (
    "import sys; print(sys.implementation.name, '%d.%d.%d' % sys.version_info[:3], "
    "getattr(sys, '_base_executable', sys.executable))"
)


def find(
    minors: Sequence[str],
    *,
    environ: Mapping[str, str] = os.environ,
    executable: Path = Path(sys.executable),
    run: Runner = run,
) -> PythonEnvironment:
    """Return an interpreter of the first of `minors` ("3.10", "3.11": in order of preference) that this machine has.

    Candidates, in this order: the running one, PATH, versions of pyenv and uv, `python3` and `python` on PATH. A
    candidate must run and report its version: shims exist for inactive versions, too, and fail with "command not
    found". MEGATRIX_PYTHON excludes the other minors. Raises MatrixError without one.
    """
    refusals: dict[Path, str] = {}
    identified: dict[Path, PythonEnvironment | None] = {}
    if (only := environ.get("MEGATRIX_PYTHON", "")) in minors:
        minors = [only]
    for minor in minors:
        for candidate in candidates(minor, environ, executable):
            if candidate not in identified:
                identified[candidate] = identify(candidate, run, refusals)
            interpreter = identified[candidate]
            if interpreter is not None and interpreter.minor == minor:
                return interpreter
    versions = sorted({f"{python.python} ({python.path})" for python in identified.values() if python})
    broken = [f"{path}: {why}" for path, why in refusals.items()]
    raise MatrixError(
        f"no Python {' or '.join(minors)} found",
        got="; ".join([*versions, *broken]) or "no Python at all",
        expected=f"python{minors[0]} on PATH, under {pyenv_root(environ)}/versions or {uv_pythons(environ)}",
        fix=f"install one: `pip install uv && uv python install {minors[0]}`, `pyenv install {minors[0]}` or the "
        f"system's package",
    )


def candidates(minor: str, environ: Mapping[str, str], executable: Path) -> Iterator[Path]:
    """Yield the files that may be Python `minor`, most likely first; existing files only."""
    folders = [Path(folder) for folder in environ.get("PATH", "").split(os.pathsep) if folder]
    # A pyenv shim takes 0.2 s (2 cores), and its targets are candidates anyway.
    folders = [folder for folder in folders if folder != pyenv_root(environ) / "shims"]
    managed = [
        *sorted((pyenv_root(environ) / "versions").glob(f"{minor}.*"), key=patch, reverse=True),
        *sorted(uv_pythons(environ).glob(f"cpython-{minor}.*"), key=patch, reverse=True),
    ]
    paths = [
        executable,
        *(folder / f"python{minor}" for folder in folders),
        *(home / "bin" / f"python{minor}" for home in managed),
        *(folder / name for folder in folders for name in ("python3", "python")),
    ]
    yield from (path for path in dict.fromkeys(paths) if path.is_file())


def identify(candidate: Path, run: Runner, refusals: dict[Path, str]) -> PythonEnvironment | None:
    """Return the interpreter; None, with the reason in `refusals`, when it does not run or is not CPython."""
    result = run(python_code(candidate, QUESTION, options=("-I", "-S")), seconds=ANSWER_SECONDS)
    facts = re.fullmatch(r"(\w+) (\d+\.\d+\.\d+) (.+)", result.out.strip())
    if not facts:
        refusals[candidate] = f"does not run ({result.complaint.splitlines()[-1]})"
    elif facts[1] != "cpython":
        refusals[candidate] = f"is {facts[1]}; torch's wheels are for CPython"
    else:
        return PythonEnvironment(facts[2], path=Path(facts[3]))
    return None


def patch(home: Path) -> int:
    """Return the patch number in the name of an installation's folder (3.10.13, cpython-3.10.13-linux...)."""
    number = re.search(r"\d+\.\d+\.(\d+)", home.name)
    return int(number[1]) if number else -1


def pyenv_root(environ: Mapping[str, str]) -> Path:
    """Return the root folder of pyenv, which has its versions, active or not."""
    return Path(environ.get("PYENV_ROOT") or Path(home(environ), ".pyenv"))


def uv_pythons(environ: Mapping[str, str]) -> Path:
    """Return the folder of interpreters installed by uv."""
    data = environ.get("XDG_DATA_HOME") or Path(home(environ), ".local", "share")
    return Path(environ.get("UV_PYTHON_INSTALL_DIR") or Path(data, "uv", "python"))


def home(environ: Mapping[str, str]) -> Path:
    """Return the user's home folder."""
    return Path(environ.get("HOME") or Path.home())
