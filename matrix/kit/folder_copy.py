"""A folder of a point's own: a copy of the caller's, so that points that run side by side can't mix their files.

Small files are copied, and folders made anew. What is large, hidden or beyond the limits is a link: reading it costs
nothing, and a command that writes into it shares it with the others.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from pathlib import Path
from typing import Final

LARGEST: Final = 2**20  # bytes of a file that is copied
MOST: Final = 5_000  # files and folders
BYTES: Final = 2**26  # of all files


def copy_folder(source: Path, target: Path) -> None:
    """Copy `source` to `target`, which must not exist: the upper levels first, links below them where it is large."""
    folders, entries, size = deque([(source, target)]), 0, 0
    while folders:
        origin, copy = folders.popleft()
        copy.mkdir(parents=True)
        for entry in sorted(os.scandir(origin), key=lambda item: item.name):
            if Path(entry.path) == target:  # the copy lies in the folder
                continue
            entries += 1
            within, path = entries <= MOST and size <= BYTES, copy / entry.name
            if within and entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                folders.append((Path(entry.path), path))
            elif within and _is_small(entry):
                size += entry.stat().st_size
                shutil.copy2(entry.path, path)
            else:
                path.symlink_to(os.path.abspath(entry.path))  # noqa: PTH100  (a link stays one)


def _is_small(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a file to copy: small and readable. A link to one is copied, too."""
    try:
        return entry.is_file() and entry.stat().st_size <= LARGEST and os.access(entry.path, os.R_OK)
    except OSError:
        return False
