"""Read /etc/ld.so.cache: which file the dynamic linker takes for a library's name.

Source: glibc's sysdeps/generic/dl-cache.h ("glibc-ld.so.cache1.1").
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

from matrix.catalog.regular_file import UnreadableError, read_regular

MAGIC: Final = b"glibc-ld.so.cache1.1"
# Flags of an entry: a library of glibc 2 (3) with the ABI of the machine.
FLAGS: Final = {"x86-64": 0x0303, "aarch64": 0x0A03, "ppc64le": 0x0503}
_HEADER: Final = struct.Struct("<20sII20x")
_ENTRY: Final = struct.Struct("<iIIIQ")  # flags, name, path, version of the system, capabilities of the processor


def read_cache(path: Path, machine: str) -> dict[str, str]:
    """Return the path of each library of a machine's cache; {} where there is none, or none of this format.

    Entries for processors with certain capabilities are left out: the same library is also there without them.
    """
    try:
        content = read_regular(path)
    except UnreadableError:
        return {}
    start = content.find(MAGIC)  # an older format may come first
    if start < 0 or len(content) < start + _HEADER.size:
        return {}
    _, count, _ = _HEADER.unpack_from(content, start)
    end = start + _HEADER.size + count * _ENTRY.size
    paths: dict[str, str] = {}
    entries = content[start + _HEADER.size : end]
    for flags, name, position, _, capabilities in _ENTRY.iter_unpack(entries[: len(entries) // 24 * 24]):
        if flags == FLAGS.get(machine) and not capabilities:
            paths.setdefault(_text(content, start + name), _text(content, start + position))
    return paths


def _text(content: bytes, start: int) -> str:
    return content[start : max(start, content.find(b"\0", start))].decode("utf-8", "replace")
