"""The project's folder: where tox, cells, containers and nodes find the package, the failures and their settings.

It is the checkout where there is one. An installed package holds the checkout's other files as data (pyproject.toml):
they are laid out as a checkout in the user's cache, in a folder that is named by its content and never changes.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

from matrix import __version__
from matrix.errors import MatrixError
from matrix.provision.overlays import default_root, flush, locked

PACKAGE: Final = Path(__file__).resolve().parents[1]
ROOT: Final = PACKAGE.parent  # what holds the package: the checkout, or the site-packages that it is installed in
# Folders of an installed package, and where their files are in a checkout; all else of the package is in matrix/.
DATA: Final = {"project": (), "failures": ("tests", "failures")}


def is_installed(package: Path = PACKAGE) -> bool:
    """Return whether the package is installed, and not part of a checkout."""
    return (package / "project").is_dir()


@cache
def folder() -> Path:
    """Return the project's folder, made first if need be. Raises MatrixError when the cache can't be written."""
    return materialise(PACKAGE, default_root() / "projects") if is_installed() else ROOT


def home() -> Path:
    """Return the folder that the site's settings count from: the checkout, else the current folder."""
    return Path.cwd() if is_installed() else ROOT


def work_root() -> Path:
    """Return where tox keeps its environments: in the checkout, else in the cache, for all versions of the package."""
    return default_root() / "tox" if is_installed() else ROOT / ".tox"


def files(package: Path) -> dict[Path, Path]:
    """Return each file of a project by its path in the project's folder, as an installed package holds it."""
    found = {}
    for path in sorted(package.rglob("*")):
        first, *rest = path.relative_to(package).parts
        if path.is_file() and "__pycache__" not in (first, *rest):
            found[Path(*DATA.get(first, ("matrix", first)), *rest)] = path
    return found


def materialise(package: Path, root: Path) -> Path:
    """Return the folder under `root` with the files of an installed package, whole or not there at all."""
    contents = {place: path.read_bytes() for place, path in files(package).items()}
    digest = hashlib.sha256()
    for place, content in sorted(contents.items()):
        digest.update(f"{place}\0{len(content)}\0".encode() + content)
    made = root / f"{__version__}-{digest.hexdigest()[:16]}"
    if made.is_dir():
        return made
    try:
        root.mkdir(parents=True, exist_ok=True)
        with locked(root / "lock"):
            if not made.is_dir():
                _write(contents, made)
    except OSError as error:
        raise MatrixError(
            "the project's folder can't be made", where=str(made), got=error.strerror or error,
            expected="a cache folder that can be written", fix="set MEGATRIX_CACHE to one",
        ) from error  # fmt: skip
    return made


def _write(contents: dict[Path, bytes], made: Path) -> None:
    """Write the files beside their place and move them there; the caller holds the lock of the folder above."""
    for dead in made.parent.glob("*.making"):  # left by a process that was killed
        shutil.rmtree(dead)
    making = Path(tempfile.mkdtemp(suffix=".making", dir=made.parent))
    try:
        for place, content in contents.items():
            path = making / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        making.chmod(0o755)  # mkdtemp's 0700 would hide it from a container's user
        for path in (*making.rglob("*"), making):  # a folder that is there after a power cut has its files, too
            flush(path)
        making.rename(made)
        flush(made.parent)
    finally:
        shutil.rmtree(making, ignore_errors=True)  # gone already unless something above raised
