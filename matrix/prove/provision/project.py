"""The project's folder, which holds the package, the failures and their settings for cells, containers and nodes.

It is the checkout where there is one. An installed package has the other files of the checkout as data
(pyproject.toml); they are written to the user's cache as a checkout, in a folder named by its content that never
changes. The folders of the versions that were used last are kept.

This and every other folder of the cache is never half made: locks, temporary folders that are renamed, flushes.
"""

from __future__ import annotations

import base64
import csv
import fcntl
import hashlib
import importlib.metadata
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final

from matrix import PACKAGE, __version__
from matrix.ground.catalog.folders import default_root
from matrix.ground.catalog.regular_file import read_regular
from matrix.ground.errors import MatrixError
from matrix.prove.store.paths import flush, write_whole


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes; the system releases it when the holder dies."""
    file.parent.mkdir(parents=True, exist_ok=True)
    # Not "w", which would wait for the reader of a FIFO; no link, which would create a file elsewhere.
    lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@contextmanager
def making(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that gets the name of `folder` when the block ends without an error.

    An older `folder` is replaced. The caller holds a lock: what a killed process left is removed.
    """
    for dead in folder.parent.glob(f"{folder.name}.*.making"):
        remove(dead)
    temporary = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".making", dir=folder.parent))
    replaced = folder.with_name(f"{folder.name}.replaced.making")
    try:
        yield temporary
        temporary.chmod(0o755)  # mkdtemp's 0700 would deny access to a container's user
        for path in (*temporary.rglob("*"), temporary):  # so that a folder that survives a power cut has its files
            flush(path)
        if os.path.lexists(folder):  # a process that reads it finds the same files there again
            folder.rename(replaced)
        temporary.rename(folder)
        flush(folder.parent)
    finally:
        for path in (temporary, replaced):  # already renamed unless an error was raised
            remove(path)


def prune(root: Path, folders: Iterable[Path], kept: int) -> None:
    """Remove those of `folders` in `root` that were used least recently, beyond `kept`.

    Each first gets another name, in one step. What a killed process left under such a name is removed, too.
    """
    for dead in root.glob("*.making"):
        remove(dead)
    for path in sorted(folders, key=lambda path: path.stat().st_mtime_ns, reverse=True)[kept:]:
        remove(path.rename(path.with_name(f"{path.name}.making")))  # no process finds half of it


def remove(path: Path) -> None:
    """Remove a folder, or a file or link in its place, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def names_of(folder: Path) -> list[str]:
    """Return the paths of the files in a folder, without what Python compiles: 0.06 s for the 17,000 of a torch."""
    names, start = list[str](), len(str(folder)) + 1
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        names += (f"{parent}/{name}"[start:] for name in files)
    return sorted(names)


def script(name: str) -> str:
    """Return Python that runs where this project does not: scripts/NAME.txt."""
    return Path(__file__).with_name("scripts").joinpath(f"{name}.txt").read_text(encoding="utf-8")


WHOLE: Final = 2**20  # bytes up to which a file is hashed; of larger ones size and the wheel's own hash count


def keep_contents(record: Path, site: Path, package: str = "") -> None:
    """Record what the wheels in a site-packages folder hold, or that of one package, by release and platform.

    Raises MatrixError where the folder `record` has another content for the same release.
    """
    for info in site.glob("*.dist-info"):
        name = re.sub(r"[-_.]+", "-", info.name.partition("-")[0]).lower()
        files = {path.name: read_regular(path) for path in info.iterdir() if path.name in ("RECORD", "WHEEL")}
        if len(files) < 2 or package not in ("", name):
            continue
        built_for = b"".join(re.findall(rb"(?m)^(?:Tag|Build):.*", files["WHEEL"]))
        content = _content(site, files["RECORD"].decode("utf-8", "replace"))
        file = record / f"{info.name.removesuffix('.dist-info')}-{hashlib.sha256(built_for).hexdigest()[:8]}"
        known = read_regular(file).decode("utf-8", "replace").strip() if file.is_file() else ""
        if known and known != content:
            raise MatrixError(
                "another content under the same version",
                where=info.name.removesuffix(".dist-info"),
                got=f"files with the SHA-256 {content}",
                expected=f"{known}, as they were installed before",
                fix=f"find out which index has changed; if that was on purpose, remove {file}",
            )
        if not known:
            write_whole(file, f"{content}\n")


def _content(site: Path, record: str) -> str:
    """Return the SHA-256 of the files that a wheel has put below a folder, without its metadata and its scripts."""
    digest = hashlib.sha256()
    for name, stated, *_ in sorted(row for row in csv.reader(record.splitlines()) if len(row) > 1):
        path, parts = site / name, name.split("/")
        top = parts[0]
        outside = top == "bin" or not {"", ".."}.isdisjoint(parts)
        if outside or top.endswith(".dist-info") or name.endswith(".pyc") or not path.is_file():
            continue
        size = path.stat().st_size
        digest.update(f"{name}\0{stated if size > WHOLE else ''}\0{size}\0".encode())
        digest.update(path.read_bytes() if size <= WHOLE else b"")
    return digest.hexdigest()


ROOT: Final = PACKAGE.parent  # parent of the package: the checkout, or site-packages
PACKAGE_NAME: Final = "megatrix"
# Written on installation.
NOT_IN_WHEEL: Final = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")
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


def files(package: Path) -> dict[Path, Path]:
    """Return the files of an installed package by their paths in the project's folder."""
    paths = {}
    for path in sorted(package.rglob("*")):
        top, *parts = path.relative_to(package).parts
        if path.is_file() and "__pycache__" not in (top, *parts):
            paths[Path(*DATA.get(top, ("matrix", top)), *parts)] = path
    return paths


def wheel(folder: Path) -> Path:
    """Write the wheel of which this package was installed, from its files, into `folder` and return it."""
    distribution = importlib.metadata.distribution(PACKAGE_NAME)
    info = f"{PACKAGE_NAME}-{distribution.version}.dist-info"
    recorded = [file for file in distribution.files or () if ".." not in file.parts and "__pycache__" not in file.parts]
    contents = {str(file): file.read_binary() for file in recorded if file.name not in NOT_IN_WHEEL}
    record = f"{info}/RECORD"
    hashes = {name: recorded_hash(hashlib.sha256(content).digest()) for name, content in contents.items()}
    lines = [f"{name},{hashes[name]},{len(content)}" for name, content in contents.items()]
    contents[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    path = folder / f"{PACKAGE_NAME}-{distribution.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(contents.items()):
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)  # without a time: always the same
    return path


def recorded_hash(sha256: bytes) -> str:
    """Return a SHA-256 as the RECORD of a wheel states it."""
    return f"sha256={base64.urlsafe_b64encode(sha256).rstrip(b'=').decode()}"


def holds(folder: Path, contents: Mapping[Path, bytes]) -> bool:
    """Return whether a folder has these files alone: a purge of old files takes some, and others may add code."""
    found = {path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()}
    found = {path for path in found if "__pycache__" not in path.parent.relative_to(folder).parts}
    return found == {folder / name for name in contents} and all(
        not (folder / name).is_symlink() and (folder / name).is_file() and (folder / name).read_bytes() == content
        for name, content in contents.items()
    )


def materialise(package: Path, root: Path) -> Path:
    """Return the folder under `root` with an installed package's files; created atomically, anew where it differs.

    What Python has compiled there is removed: nobody can compare it with its source.
    """
    contents = {target: path.read_bytes() for target, path in files(package).items()}
    digest = hashlib.sha256()
    for target, content in sorted(contents.items()):
        digest.update(f"{target}\0{len(content)}\0".encode() + content)
    project = root / f"{__version__}-{digest.hexdigest()[:16]}"
    try:
        if not holds(project, contents):
            with locked(root / "lock"):
                if not holds(project, contents):
                    with making(project) as temporary:
                        for target, content in contents.items():
                            (temporary / target).parent.mkdir(parents=True, exist_ok=True)
                            (temporary / target).write_bytes(content)
                    versions = (path for path in root.iterdir() if path.is_dir() and path != project)
                    prune(root, versions, KEPT - 1)
        for compiled in project.rglob("__pycache__/*"):  # compiled again in 0.2 s
            remove(compiled)
        with suppress(OSError):  # a read-only cache, or one of another user
            os.utime(project)  # the time of its last use
    except OSError as error:
        raise MatrixError(
            "the project's folder can't be created",
            where=str(project),
            got=error.strerror or error,
            expected="a cache folder that can be written",
            fix="set MEGATRIX_CACHE to one",
        ) from error
    return project
