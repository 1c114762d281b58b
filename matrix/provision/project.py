"""The project's folder, which holds the package, the failures and their settings for tox, cells, containers and nodes.

It is the checkout where there is one. An installed package has the other files of the checkout as data
(pyproject.toml); they are written to the user's cache as a checkout, in a folder named by its content that never
changes. The folders of the versions that were used last are kept.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from matrix import __version__
from matrix.errors import MatrixError
from matrix.provision.overlays import default_root, flush, locked

PACKAGE: Final = Path(__file__).resolve().parents[1]
ROOT: Final = PACKAGE.parent  # parent of the package: the checkout, or site-packages
KEPT: Final = 3  # laid-out versions, by last use: a run of another version may be going on
# Folders of an installed package and their places in a checkout; all other files of the package are in matrix/.
DATA: Final = {"project": (), "failures": ("tests", "failures")}


def is_installed(package: Path = PACKAGE) -> bool:
    """Return whether the package is installed; False in a checkout."""
    return (package / "project").is_dir()


@cache
def folder() -> Path:
    """Return the project's folder, created if missing. Raises MatrixError when the cache can't be written."""
    return materialise(PACKAGE, default_root() / "projects") if is_installed() else ROOT


def home() -> Path:
    """Return the base folder of relative paths in the site's settings: the checkout, else the current folder."""
    return Path.cwd() if is_installed() else ROOT


def work_root() -> Path:
    """Return the folder of tox environments: in the checkout, else in the cache, shared by versions of the package."""
    return default_root() / "tox" if is_installed() else ROOT / ".tox"


def files(package: Path) -> dict[Path, Path]:
    """Return the files of an installed package by their paths in the project's folder."""
    found = {}
    for path in sorted(package.rglob("*")):
        first, *rest = path.relative_to(package).parts
        if path.is_file() and "__pycache__" not in (first, *rest):
            found[Path(*DATA.get(first, ("matrix", first)), *rest)] = path
    return found


def materialise(package: Path, root: Path) -> Path:
    """Return the folder under `root` with the files of an installed package; it is created atomically."""
    contents = {place: path.read_bytes() for place, path in files(package).items()}
    digest = hashlib.sha256()
    for place, content in sorted(contents.items()):
        digest.update(f"{place}\0{len(content)}\0".encode() + content)
    made = root / f"{__version__}-{digest.hexdigest()[:16]}"
    try:
        if not made.is_dir():
            root.mkdir(parents=True, exist_ok=True)
            with locked(root / "lock"):
                if not made.is_dir():
                    _write(contents, made)
                    _prune(made)
        with suppress(OSError):  # a read-only cache, or one of another user
            os.utime(made)  # the time of its last use
    except OSError as error:
        raise MatrixError(
            "the project's folder can't be created", where=str(made), got=error.strerror or error,
            expected="a cache folder that can be written", fix="set MEGATRIX_CACHE to one",
        ) from error  # fmt: skip
    return made


def _prune(made: Path) -> None:
    """Remove the folders that were used least recently, beyond KEPT; the caller holds the lock of their parent."""
    others = [path for path in made.parent.iterdir() if path.is_dir() and path != made]
    for path in sorted(others, key=lambda path: path.stat().st_mtime_ns, reverse=True)[KEPT - 1 :]:
        dead = path.rename(path.with_name(f"{path.name}.making"))  # in one step: no process finds half of it
        shutil.rmtree(dead, ignore_errors=True)


def _write(contents: dict[Path, bytes], made: Path) -> None:
    """Write the files to a temporary folder and rename it; the caller holds the lock of the parent folder."""
    for dead in made.parent.glob("*.making"):  # left by a process that was killed
        shutil.rmtree(dead)
    making = Path(tempfile.mkdtemp(suffix=".making", dir=made.parent))
    try:
        for place, content in contents.items():
            path = making / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        making.chmod(0o755)  # mkdtemp's 0700 would deny access to a container's user
        for path in (*making.rglob("*"), making):  # so that a folder that survives a power cut has its files
            flush(path)
        making.rename(made)
        flush(made.parent)
    finally:
        shutil.rmtree(making, ignore_errors=True)  # already renamed unless an error was raised
