"""The tox environments of the bases, each named as its base: their packages, variables and installation."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from matrix.ground.catalog.model import Catalog, ReaderBase, Wheels
from matrix.read.machine.nvidia import nvml

# Packages that Megatrix itself needs in a cell: pytest and the imports of matrix/. tomli is for Python 3.10,
# pytest-xdist for -n alone.
CELL_REQUIRES: Final = ("pytest>=8", "pytest-xdist>=3.6", "packaging>=24", "tomli>=2; python_version < '3.11'")
# Variables of every interpreter of a cell. PYTHONHASHSEED: a rerun must be deterministic. NO_VCS_VERSION: otherwise
# megatron-core >= 0.17 records the commit of a git repository around the overlay.
CELL_SETTINGS: Final = {"PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0", "NO_VCS_VERSION": "1"}
# Names the folder into which tox writes the variables of the commands of each environment, for a run without tox.
VARIABLES: Final = "MEGATRIX_VARIABLES"


def environments(catalog: Catalog) -> dict[str, Wheels | ReaderBase]:
    """Return the bases that tox makes, by id."""
    return {base.id: base for base in (*catalog.made, *catalog.by_python.values())}


def requirements(base: Wheels | ReaderBase) -> tuple[str, ...]:
    """Return what pip installs for a base."""
    return (f"torch=={base.torch}", *base.requires, *CELL_REQUIRES) if isinstance(base, Wheels) else CELL_REQUIRES


class Turn:
    """A lock between threads that its holder may take again, and that any thread may end for it."""

    def __init__(self) -> None:
        self._free = threading.Lock()
        self._holder = ""

    def begin(self, name: str) -> None:
        """Wait for the turn; a party that has it keeps it."""
        if self._holder != name:
            self._free.acquire()
            self._holder = name

    def end(self, name: str) -> None:
        """Pass the turn on, if this party has it."""
        if self._holder == name:
            self._holder = ""
            self._free.release()


# What uv leaves out of every resolution: files of names, separated by spaces. tox-uv installs again when it changes.
EXCLUDE: Final = "UV_EXCLUDE"
# For environments that run on other machines than this one, such as the nodes of a cluster.
WITH_GPU_PACKAGES: Final[Mapping[str, str]] = {EXCLUDE: ""}


def left_out(packages: Sequence[str], file: Path, environ: Mapping[str, str], *, driver: bool) -> dict[str, str]:
    """Write the names to `file` and return the variable that makes uv leave them out.

    {} on a machine with a driver, where the variable is set, even to "", and where it can't express the path (a space):
    the packages are then installed.
    """
    if not packages or driver or EXCLUDE in environ or any(map(str.isspace, str(file))):
        return {}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(packages), encoding="utf-8")
    return {EXCLUDE: str(file)}


def has_driver(proc: Path = Path("/proc")) -> bool:
    """Return whether this machine has NVIDIA's driver: its kernel module, or its library (WSL, some containers)."""
    return (proc / "driver" / "nvidia").exists() or not nvml.there()
