from __future__ import annotations

import struct
from pathlib import Path

from matrix.read.elf.dynamic_linker import MAGIC, read_cache


def cache(*entries: tuple[int, str, str, int]) -> bytes:
    """Return a cache with (flags, name, path, capabilities)."""
    head = struct.pack("<20sII20x", MAGIC, len(entries), 0)
    start, table, texts = len(head) + 24 * len(entries), b"", b""
    for flags, name, path, capabilities in entries:
        first = start + len(texts)
        texts += name.encode() + b"\0"
        table += struct.pack("<iIIIQ", flags, first, start + len(texts), 0, capabilities)
        texts += path.encode() + b"\0"
    return head + table + texts


def test_entries_of_the_machine_count(tmp_path: Path) -> None:
    entries = [
        (0x0303, "liba.so.1", "/lib/hwcaps/liba.so.1", 1 << 62),
        (0x0303, "liba.so.1", "/lib/liba.so.1", 0),
        (0x0303, "liba.so.1", "/other/liba.so.1", 0),
        (0x0803, "libb.so.1", "/lib32/libb.so.1", 0),
    ]
    (tmp_path / "ld.so.cache").write_bytes(cache(*entries))
    assert read_cache(tmp_path / "ld.so.cache", "x86-64") == {"liba.so.1": "/lib/liba.so.1"}


def test_missing_and_damaged_caches_are_empty(tmp_path: Path) -> None:
    assert read_cache(tmp_path / "none", "x86-64") == {}
    for length in range(0, 60, 7):
        (tmp_path / "ld.so.cache").write_bytes(cache((0x0303, "liba.so.1", "/lib/liba.so.1", 0))[:length])
        assert read_cache(tmp_path / "ld.so.cache", "x86-64") == {}


def test_cache_of_this_machine_has_its_libraries() -> None:
    paths = read_cache(Path("/etc/ld.so.cache"), "x86-64")
    assert all(Path(path).exists() for path in paths.values())
