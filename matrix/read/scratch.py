"""Temporary files of a run: one folder for all of its processes, which the next run deletes once they are all dead.

Each process holds a shared lock on the folder, which the system releases when the process ends for any reason. A folder
that nobody holds was left by kill -9.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from functools import cache
from multiprocessing import util
from pathlib import Path
from typing import Final

VARIABLE: Final = "MEGATRIX_SCRATCH"  # the folder of the process that started this one
LOCK: Final = "lock"
# Characters of a temporary folder's path: the path of a socket has at most 107 bytes (unix(7)), and that of
# multiprocessing's forkserver adds 56 to it.
SHORT: Final = 50
MOUNTS: Final = Path("/proc/self/mountinfo")
LAST: Final = -200  # priority at exit: multiprocessing deletes its own folder, which is in this one, at -100


def root() -> Path:
    """Return the folder for temporary files of all runs of this machine: $TMPDIR, or /tmp if that path is long."""
    inherited = os.environ.get(VARIABLE)
    parent = Path(inherited).parent if inherited else Path(tempfile.gettempdir())
    return parent if len(str(parent)) <= SHORT else Path("/tmp")  # noqa: S108  (the folder in it is private)


@cache
def folder() -> Path:
    """Return the folder of this process: that of the process which started it, or a new one, deleted at exit.

    A new one is made after the folders of dead processes are deleted.
    """
    joined = os.environ.get(VARIABLE)
    if joined and _hold(Path(joined), fcntl.LOCK_SH) is not None:
        return Path(joined)
    sweep(root())
    while True:
        path = Path(tempfile.mkdtemp(prefix=_prefix(), dir=root()))
        if _hold(path, fcntl.LOCK_SH) is not None:  # else another process swept it before it was locked
            util.Finalize(None, _delete, (path,), exitpriority=LAST)  # not in a fork
            return path


def temporary(name: str) -> tempfile.TemporaryDirectory[str]:
    """Return a folder in this process's folder; a context manager that deletes it."""
    return tempfile.TemporaryDirectory(prefix=f"{name}-", dir=folder(), ignore_cleanup_errors=True)


def environment() -> dict[str, str]:
    """Return the variables with which another process keeps its temporary files in this process's folder."""
    return {VARIABLE: str(folder()), "TMPDIR": str(folder())}


@contextlib.contextmanager
def entered() -> Iterator[None]:
    """Keep all temporary files of this process and its children in its folder for the length of a block."""
    default, variables = tempfile.tempdir, {name: os.environ.get(name) for name in environment()}
    os.environ.update(environment())
    tempfile.tempdir = str(folder())
    try:
        yield
    finally:
        tempfile.tempdir = default
        for name, value in variables.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def sweep(root: Path) -> None:
    """Delete the folders in `root` that this user's runs left; never a folder of a process that lives."""
    for path in root.glob(f"{_prefix()}*"):
        status = path.lstat() if _named(path) else None
        if status and stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
            lock = _hold(path, fcntl.LOCK_EX)
            if lock is not None:
                _delete(path)
                os.close(lock)


def _prefix() -> str:
    return f"megatrix-{os.getuid()}-"


def _named(path: Path) -> bool:
    """Return whether a path has the name of such a folder and exists; another process may delete it at any time."""
    return bool(re.fullmatch(rf"{_prefix()}[a-z0-9_]{{8}}", path.name)) and os.path.lexists(path)


def _hold(folder: Path, how: int) -> int | None:
    """Return a descriptor that locks the folder; None if others hold it, or if it is gone or not this user's."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
        status = os.fstat(lock)
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and status.st_nlink:
            return lock
    except BlockingIOError:
        pass
    os.close(lock)
    return None


def _delete(folder: Path) -> None:
    """Delete a folder, also parts that deny access to their owner; not if something is mounted in it."""
    if any(line.split()[4].startswith(f"{folder}/") for line in MOUNTS.read_text("utf-8").splitlines()):
        return
    for parent, names, _ in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if not path.is_symlink():
                path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
