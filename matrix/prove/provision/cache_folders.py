"""Folders of the cache that are never half made: locks, temporary folders that are renamed, flushes."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes; the system releases it when the holder dies."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(file, os.O_RDWR | os.O_CREAT)  # not "w", which would wait for the reader of a FIFO
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


def flush(path: Path) -> None:
    """Flush a file or folder to the disk (65 ms for the 244 of a megatron-core, on an SSD)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
