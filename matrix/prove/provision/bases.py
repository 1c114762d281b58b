"""The bases of wheels: environments that uv makes once for their content, and that every run on this machine shares.

A folder is named by its base and the digest of what it is made of. It is complete when it has its record, which is
written last; what a killed process left is made anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import tempfile
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from matrix.ground.catalog.folders import default_root
from matrix.ground.catalog.machine import PythonEnvironment
from matrix.ground.catalog.model import Catalog, ReaderBase, Wheels
from matrix.ground.catalog.regular_file import read_regular_text
from matrix.ground.errors import MatrixError
from matrix.prove.provision import host
from matrix.prove.provision.indexes import site_environment
from matrix.prove.provision.interpreters import Pythons
from matrix.prove.provision.overlays import uv
from matrix.prove.provision.project import flush, locked, prune, remove
from matrix.read.commands import Runner, run
from matrix.read.machine import installed
from matrix.read.machine.nvidia import nvml

# Packages that Megatrix itself needs in a cell: pytest and the imports of matrix/. tomli is for Python 3.10,
# pytest-xdist for -n alone.
CELL_REQUIRES: Final = ("pytest>=8", "pytest-xdist>=3.6", "packaging>=24", "tomli>=2; python_version < '3.11'")
# Variables of every interpreter of a cell. PYTHONHASHSEED: a rerun must be deterministic. NO_VCS_VERSION: otherwise
# megatron-core >= 0.17 records the commit of a git repository around the overlay.
CELL_SETTINGS: Final = {"PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0", "NO_VCS_VERSION": "1"}
# What uv leaves out of every resolution: files of names, separated by spaces.
EXCLUDE: Final = "UV_EXCLUDE"
# For environments that run on other machines than this one, such as the nodes of a cluster.
WITH_GPU_PACKAGES: Final[Mapping[str, str]] = {EXCLUDE: ""}
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
    return (proc / "driver" / "nvidia").exists() or not nvml.there()


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
        self._made: dict[str, Wheels | ReaderBase] = {
            str(base.id): base for base in (*catalog.made, *catalog.by_python.values())
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
        return None if id not in self._made or self.lack(id) else self._complete(self._folder(id))

    def provide(self, id: str) -> PythonEnvironment:
        """Return the environment of a base, made if it is missing; concurrent processes make it once.

        Raises MatrixError where this machine has no Python for it, or uv can't make it.
        """
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
        """Return the contents of an environment whose record was written, and whose interpreter is still there."""
        complete = (folder / RECORD).is_file() and (folder / "bin" / "python").exists()
        if folder not in self._contents and complete and (environment := installed.at(folder)):
            self._contents[folder] = environment
        return self._contents.get(folder)

    def _make(self, id: str, folder: Path) -> PythonEnvironment:
        """Make an environment and return it; the caller holds its lock."""
        packages, names = requirements(self._made[id]), left_out(self._made[id], self._environ, driver=self._driver)
        remove(folder)
        try:
            self._uv(id, "venv", "--python", str(self._python(id).path), str(folder))
            with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as excluded:
                excluded.write("\n".join(names))
                excluded.flush()
                excludes = ["--excludes", excluded.name] if names else []
                self._uv(id, "pip", "install", "--python", str(folder / "bin" / "python"), *excludes, *packages)
            (folder / RECORD).write_text(json.dumps(packages, indent=1) + "\n", encoding="utf-8")
            flush(folder / RECORD)
        except BaseException:
            remove(folder)
            raise
        same_base = re.compile(rf"{re.escape(id)}-[0-9a-f]{{16}}")
        older = (path for path in self.root.iterdir() if same_base.fullmatch(path.name) and path != folder)
        prune(self.root, older, KEPT - 1)
        self._complete(folder)
        return self._contents[folder]

    def _uv(self, id: str, *words: str) -> None:
        environ = {**self._environ, **site_environment(self._environ), "UV_PYTHON_DOWNLOADS": "never"}
        # --directory: the current folder may hold uv settings of another project.
        result = self._run([*uv(environ), "--quiet", "--directory", str(self.root), *words], environment=environ)
        if result.code:
            raise MatrixError(
                "uv can't make this base",
                where=id,
                got=" ".join(result.complaint.split()),
                fix="check that the package index is reachable",
            )
