"""The Pythons of this machine, and the bases of wheels that uv makes with them, once for their content.

A missing Python is downloaded by uv, which honours its own variables: UV_PYTHON_INSTALL_MIRROR,
UV_PYTHON_DOWNLOADS_JSON_URL, UV_PYTHON_INSTALL_DIR, UV_OFFLINE, UV_PYTHON_DOWNLOADS, a proxy, certificates.

The folder of a base is shared by every run on this machine, and named by the base and the digest of what it is made of.
It is complete when it has its record, which is written last, and the files in that; what a killed process or a purge
left is made anew. Its releases must have the content that they had before.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from matrix.ground.catalog.folders import SETTINGS, default_root
from matrix.ground.catalog.machine import PythonEnvironment
from matrix.ground.catalog.model import Catalog, ReaderBase, Wheels
from matrix.ground.catalog.regular_file import UnreadableError, read_regular_text
from matrix.ground.errors import MatrixError
from matrix.prove.provision import host, project
from matrix.prove.provision.host import Configuration
from matrix.prove.provision.indexes import run_uv, uv
from matrix.prove.provision.project import keep_contents, locked, names_of, prune, remove
from matrix.prove.store.paths import flush
from matrix.read.commands import Runner, python_code, python_module, run
from matrix.read.machine import hardware, installed

# Seconds. An interpreter starts in 10-20 ms, a pyenv shim in 0.1-0.2 s (2 cores); 10 s is for a cold network disk.
PYTHON_ANSWER_S = 10.0

# The base interpreter, not that of an active virtual environment, which environments must outlive.
PYTHON_QUESTION = (
    "import sys; print(sys.implementation.name, '%d.%d.%d' % sys.version_info[:3], "
    "getattr(sys, '_base_executable', sys.executable))"
)


def find_python(
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
    managed = list[Path]()
    for versions, pattern in ((pyenv_root(environ) / "versions", minor), (uv_pythons(environ), f"cpython-{minor}")):
        with suppress(OSError):  # a folder that can't be read, or whose name is too long
            managed += sorted(versions.glob(f"{pattern}.*"), key=patch, reverse=True)
    paths = [
        executable,
        *(folder / f"python{minor}" for folder in folders),
        *(home / "bin" / f"python{minor}" for home in managed),
        *(folder / name for folder in folders for name in ("python3", "python")),
    ]
    yield from (path for path in dict.fromkeys(paths) if os.path.isfile(path))  # noqa: PTH113  (False where it can't be read)


def identify(candidate: Path, run: Runner, refusals: dict[Path, str]) -> PythonEnvironment | None:
    """Return the interpreter; None, with the reason in `refusals`, when it does not run or is not CPython."""
    result = run(python_code(candidate, PYTHON_QUESTION, options=("-I", "-S")), seconds=PYTHON_ANSWER_S)
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
    number = re.search(r"\d{1,9}\.\d{1,9}\.(\d{1,9})", home.name)
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


def python_command(minor: str) -> str:
    """Return the command that installs a minor of Python for this project, "3.10"."""
    return f"pip install uv && uv python install {minor}"


def forbidden(configuration: Configuration, environ: Mapping[str, str] = os.environ) -> str:
    """Return the setting that forbids downloads, "" if they are allowed."""
    setting = environ.get("UV_PYTHON_DOWNLOADS", "")
    if setting.lower() in ("never", "manual", "false"):
        return f"UV_PYTHON_DOWNLOADS={setting}"
    return "" if configuration.interpreters.download else f"interpreters.download = false in {SETTINGS}"


class Pythons:
    """The interpreters of the bases of a run: those of this machine, and downloaded ones. `say` receives notices."""

    def __init__(
        self,
        configuration: Configuration,
        say: Callable[[str], None],
        *,
        environ: Mapping[str, str] = os.environ,
        run: Runner = run,
        find: Callable[..., PythonEnvironment] = find_python,
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
        return f"needs Python {' or '.join((*base.pythons, *base.fallbacks))}{tried}: {python_command(minor)}"

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
        words = ["python", "install", "--no-bin", minor]
        try:
            result = run_uv(words, project.folder(), self._run, self._environ, downloads="manual")
        except MatrixError as error:
            return error.brief
        self._found.clear()  # a fallback may have been found before
        # uv's first cause and its last: "Request failed after 3 retries", "failed to lookup address information".
        lines = [line.strip().removeprefix("cause: ") for line in result.complaint.splitlines()]
        return "; ".join(dict.fromkeys([*lines[1:2], lines[-1]])) if result.code else ""


# Packages that Megatrix itself needs in a cell: pytest and the imports of matrix/. tomli is for Python 3.10,
# pytest-xdist for -n alone.
CELL_REQUIRES: Final = ("pytest>=8", "pytest-xdist>=3.6", "packaging>=24", "tomli>=2; python_version < '3.11'")
# Variables of every interpreter of a cell. PYTHONHASHSEED: a rerun must be deterministic. NO_VCS_VERSION: otherwise
# megatron-core >= 0.17 records the commit of a git repository around the overlay.
CELL_SETTINGS: Final = {"PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0", "NO_VCS_VERSION": "1"}
# A host's plugins of pytest may warn, or need what the cases do not have: ours is named in conftest.py.
PYTEST_SETTINGS: Final = {**CELL_SETTINGS, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
# What uv leaves out of every resolution: files of names, separated by spaces.
EXCLUDE: Final = "UV_EXCLUDE"
# For environments that run on other machines than this one, such as the nodes of a cluster.
WITH_GPU_PACKAGES: Final[Mapping[str, str]] = {EXCLUDE: ""}
NEEDED: Final = "Python 3.10 or later, with torch, pytest and packaging"  # of a user's environment
GIVEN_S: Final = 60.0  # s for its packages to be listed; 0.3 s on 2 cores, a minute on a cold network disk
RECORD: Final = "base.json"
KEPT: Final = 2  # environments of a base, by last use: another checkout may have other requirements
LAYOUT: Final = 1  # incremented when environments are made in another way, so that they are made anew


def requirements(base: Wheels | ReaderBase) -> tuple[str, ...]:
    """Return what uv installs for a base."""
    return (f"torch=={base.torch}", *base.requires, *CELL_REQUIRES) if isinstance(base, Wheels) else CELL_REQUIRES


def left_out(base: Wheels | ReaderBase, environ: Mapping[str, str], *, driver: bool) -> tuple[str, ...]:
    """Return the packages of a base that only GPUs need; () with a driver, and where $UV_EXCLUDE is set, even to ""."""
    return () if driver or EXCLUDE in environ or isinstance(base, ReaderBase) else tuple(base.gpu_only)


def has_driver(proc: Path = Path("/proc")) -> bool:
    """Return whether this machine has NVIDIA's driver: its kernel module, or its library (WSL, some containers)."""
    return (proc / "driver" / "nvidia").exists() or not hardware.there()


def _whole(folder: Path) -> bool:
    """Return whether an environment has its record, its interpreter, and the files that the record names, if any."""
    try:
        record = json.loads(read_regular_text(folder / RECORD))
    except (UnreadableError, ValueError):
        return False
    missing = {*record["files"]}.difference(names_of(folder)) if isinstance(record, dict) else ()
    return not missing and (folder / "bin" / "python").exists()


def program_of(word: str) -> str:
    """Return the Python that a word names, of a virtual environment or a file such as python3.12; "" for none."""
    path = Path(word)
    program = path / "bin" / "python" if path.is_dir() else path
    is_python = re.fullmatch(r"python[\d.]*", program.name) and program.is_file() and os.access(program, os.X_OK)
    return os.path.abspath(program) if is_python else ""  # noqa: PTH100  (a link stays one: it names the environment)


@cache
def environment_at(program: str) -> PythonEnvironment:
    """Return the environment of a user's Python, which runs cells as it is. Raises MatrixError where it can't."""
    answer = run(python_module(program, "matrix.read.machine.installed", folder=project.folder()), seconds=GIVEN_S)
    try:
        environment = PythonEnvironment(**json.loads(answer.out.strip().splitlines()[-1]), path=Path(program))
    except (IndexError, TypeError, ValueError):
        environment = PythonEnvironment()
    missing = [name for name in ("pytest", "packaging", "torch") if name not in environment.packages]
    if missing:
        fix = f"{program} -m pip install {' '.join(shlex.quote(text) for text in CELL_REQUIRES)}, or name versions"
        got = answer.complaint.splitlines()[-1] if answer.code else f"no {', no '.join(missing)}"
        raise MatrixError("tests can't run in this environment", where=program, got=got, expected=NEEDED, fix=fix)
    return environment


class Bases:
    """The bases of wheels of a catalog and their environments under `root`; `say` receives notices of downloads."""

    def __init__(
        self,
        catalog: Catalog,
        say: Callable[[str], None] = lambda text: None,
        *,
        root: Path | None = None,
        environ: Mapping[str, str] = os.environ,
        run: Runner = run,
    ) -> None:
        self._given = {str(base.id): base.program for base in catalog.wheels if base.program}
        self._made: dict[str, Wheels | ReaderBase] = {
            str(base.id): base for base in (*catalog.made, *catalog.by_python.values()) if base.id not in self._given
        }
        self.root = (root or default_root(environ)) / "bases"
        self._environ, self._run, self._driver = environ, run, has_driver()
        self._pythons = Pythons(host.load_configuration(environ), say, environ=environ)
        self._contents: dict[Path, PythonEnvironment] = {}  # by folder: 60 ms of processor each

    def ready(self, ids: Collection[str]) -> None:
        """Download missing interpreters, in the catalog's order: a download for one base may serve the next.

        Raises MatrixError where a base is missing, and uv as well.
        """
        for id, base in self._made.items():
            if id in ids:
                self._pythons.provide(base)
                if not self.lack(id) and not self.installed(id):
                    uv(self._environ)

    def lack(self, id: str) -> str:
        """Return which Python is missing; what else a base lacks is known when uv has tried to make it."""
        return self._pythons.lack(self._made[id]) if id in self._made else ""

    def installed(self, id: str) -> PythonEnvironment | None:
        """Return the contents of a base, None for one that is not made yet, or that can't be."""
        if id in self._given:
            return environment_at(self._given[id])
        return None if id not in self._made or self.lack(id) else self._complete(self._folder(id))

    def provide(self, id: str) -> PythonEnvironment:
        """Return the environment of a base, made if it is missing; concurrent processes make it once.

        Raises MatrixError where this machine has no Python for it, or uv can't make it.
        """
        if id in self._given:
            return environment_at(self._given[id])
        if id not in self._made:
            raise MatrixError("no such base of wheels", got=id, expected="a base that uv makes")
        folder = self._folder(id)
        if not (environment := self._complete(folder)):
            with locked(folder.with_name(f"{folder.name}.lock")):
                environment = self._complete(folder) or self._make(id, folder)
        with suppress(OSError):  # a read-only cache, or one of another user
            os.utime(folder)  # the time of its last use
        return environment

    def _folder(self, id: str) -> Path:
        """Return the folder of a base, named by what it is made of."""
        base, python = self._made[id], self._python(id)
        excluded = [read_regular_text(Path(file)) for file in self._environ.get(EXCLUDE, "").split()]
        made_of = [LAYOUT, python.python, str(python.path), platform.machine(), requirements(base), excluded]
        made_of.append(left_out(base, self._environ, driver=self._driver))
        return self.root / f"{id}-{hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]}"

    def _python(self, id: str) -> PythonEnvironment:
        return self._pythons.find((*self._made[id].pythons, *self._made[id].fallbacks))

    def _complete(self, folder: Path) -> PythonEnvironment | None:
        """Return the contents of an environment whose record was written, and whose files are still there."""
        if folder not in self._contents and _whole(folder) and (environment := installed.at(folder)):
            self._contents[folder] = environment
        return self._contents.get(folder)

    def _make(self, id: str, folder: Path) -> PythonEnvironment:
        """Make an environment and return it; the caller holds its lock."""
        packages, excluded = requirements(self._made[id]), left_out(self._made[id], self._environ, driver=self._driver)
        remove(folder)
        try:
            self._uv(id, "venv", "--python", str(self._python(id).path), str(folder))
            words = ["pip", "install", "--python", str(folder / "bin" / "python"), *packages]
            self._uv(id, *words, excluded=excluded or None)
            for site in folder.glob("lib/python3.*/site-packages"):
                keep_contents(self.root.parent / "contents" / "bases", site)
            record = {"requirements": packages, "files": names_of(folder)}
            (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            flush(folder / RECORD)
        except BaseException:
            remove(folder)
            raise
        same_base = re.compile(rf"{re.escape(id)}-[0-9a-f]{{16}}")
        older = (path for path in self.root.iterdir() if same_base.fullmatch(path.name) and path != folder)
        prune(self.root, older, KEPT - 1)
        self._complete(folder)
        return self._contents[folder]

    def _uv(self, id: str, *words: str, excluded: Iterable[str] | None = None) -> None:
        result = run_uv(["--quiet", *words], self.root, self._run, self._environ, excluded=excluded)
        if result.code:
            raise MatrixError(
                "uv can't make this base",
                where=id,
                got=" ".join(result.complaint.split()),
                fix="check that the package index is reachable",
            )
