"""The Python interpreters of this machine, by minor version: those that run, and missing ones, which uv downloads.

uv honours its own variables: UV_PYTHON_INSTALL_MIRROR, UV_PYTHON_DOWNLOADS_JSON_URL, UV_PYTHON_INSTALL_DIR, UV_OFFLINE,
UV_PYTHON_DOWNLOADS, a proxy, certificates.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from matrix.ground.catalog.machine import PythonEnvironment
from matrix.ground.catalog.model import ReaderBase, Wheels
from matrix.ground.errors import MatrixError
from matrix.prove.provision import project
from matrix.prove.provision.host import FILE, Configuration
from matrix.prove.provision.indexes import site_environment
from matrix.prove.provision.overlays import uv
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


SIZE: Final = "about 30 MB, 100 MB unpacked"  # of uv's builds of CPython 3.10 to 3.13 for Linux


def command(minor: str) -> str:
    """Return the command that installs a minor of Python for this project, "3.10"."""
    return f"pip install uv && uv python install {minor}"


def forbidden(configuration: Configuration, environ: Mapping[str, str] = os.environ) -> str:
    """Return the setting that forbids downloads, "" if they are allowed."""
    setting = environ.get("UV_PYTHON_DOWNLOADS", "")
    if setting.lower() in ("never", "manual", "false"):
        return f"UV_PYTHON_DOWNLOADS={setting}"
    return "" if configuration.interpreters.download else f"interpreters.download = false in {FILE}"


class Pythons:
    """The interpreters of the bases of a run: those of this machine, and downloaded ones. `say` receives notices."""

    def __init__(
        self,
        configuration: Configuration,
        say: Callable[[str], None],
        *,
        environ: Mapping[str, str] = os.environ,
        run: Runner = run,
        find: Callable[..., PythonEnvironment] = find,
    ) -> None:
        self._forbidden = forbidden(configuration, environ)
        self._say, self._environ, self._run, self._find = say, environ, run, find
        self._found: dict[tuple[str, ...], PythonEnvironment] = {}
        self._failed: dict[str, str] = {}  # minor -> why it can't be downloaded

    def provide(self, base: Wheels | ReaderBase) -> None:
        """Download the preferred Python of a base for which this machine has none, once; report a failure."""
        minor = base.pythons[0]
        if self._lacks(base.pythons) and not self._forbidden and minor not in self._failed:
            folder = uv_pythons(self._environ)
            self._say(
                f"Python {' or '.join(base.pythons)} is missing: uv downloads Python {minor} ({SIZE}) to {folder}; "
                f"UV_PYTHON_DOWNLOADS=never forbids it"
            )
            if why := self._download(minor) or self._lacks(base.pythons):
                self._failed[minor] = why
                self._say(f"Python {minor} is not available after the download: {why}")

    def lack(self, base: Wheels | ReaderBase) -> str:
        """Return that this machine has no Python for a base and the command that installs one; "" if it has one."""
        if not self._lacks((*base.pythons, *base.fallbacks)):
            return ""
        minor = base.pythons[0]
        why = self._failed.get(minor) or self._forbidden
        tried = f" ({why})" if why else ""
        return f"needs Python {' or '.join((*base.pythons, *base.fallbacks))}{tried}: {command(minor)}"

    def find(self, minors: tuple[str, ...]) -> PythonEnvironment:
        """Return the interpreter of the first of these minors that this machine has. Raises MatrixError without one."""
        if minors not in self._found:
            self._found[minors] = self._find(minors, environ=self._environ)
        return self._found[minors]

    def _lacks(self, minors: tuple[str, ...]) -> str:
        """Return "" if this machine has one of these minors, else what it has, and which of its Pythons do not run."""
        try:
            self.find(minors)
        except MatrixError as error:
            return str(error.got)
        return ""

    def _download(self, minor: str) -> str:
        """Return "" after a download, else why it failed."""
        # `manual`: downloads only by a command, such as this one; `never` refuses it too.
        environment = {**self._environ, **site_environment(self._environ), "UV_PYTHON_DOWNLOADS": "manual"}
        try:
            # The current folder may hold uv settings of another project.
            command = [*uv(environment), "--directory", str(project.folder()), "python", "install", "--no-bin", minor]
            result = self._run(command, environment=environment)
        except MatrixError as error:
            return error.brief
        self._found.clear()  # a fallback may have been found before
        # uv's first cause and its last: "Request failed after 3 retries", "failed to lookup address information".
        lines = [line.strip().removeprefix("cause: ") for line in result.complaint.splitlines()]
        return "; ".join(dict.fromkeys([*lines[1:2], lines[-1]])) if result.code else ""
