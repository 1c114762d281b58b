"""Read for which GPUs a shared object has code: the headers of its fat binaries, in section .nv_fatbin.

Source: files that nvcc of CUDA 13.0 made with several -gencode, and wheels. A region has a header with magic and
size, each entry a header with kind, sizes, and the compute capability. The code itself, compressed or not, is not read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from matrix.read.elf.elf_file import ElfFile

MAGIC: Final = 0xBA55ED50
PTX, CUBIN = 1, 2
_REGION: Final = struct.Struct("<IHHQ")  # magic, version, size of this header, size of the entries
_ENTRY: Final = struct.Struct("<HHIQIIHHI")  # kind, _, header, size, compressed size, _, minor, major, capability
MOST_REGIONS: Final = 20_000
ALIGNMENT: Final = 8


@dataclass(frozen=True)
class GpuCode:
    """The compute capabilities, as 10 * major + minor, for which there is machine code, and PTX."""

    cubins: frozenset[int] = frozenset()
    ptx: frozenset[int] = frozenset()

    def runs_on(self, sm: str) -> bool:
        """Return whether some code runs on a GPU ("9.0"): of its major and no newer minor, or PTX of no newer one."""
        major, _, minor = sm.partition(".")
        gpu = 10 * int(major) + int(minor or 0)
        return any(code // 10 == gpu // 10 and code <= gpu for code in self.cubins) or any(c <= gpu for c in self.ptx)

    def __str__(self) -> str:
        texts = [f"sm_{code}" for code in sorted(self.cubins)] + [f"PTX of compute_{code}" for code in sorted(self.ptx)]
        return ", ".join(texts)


def gpu_code(files: Iterable[ElfFile]) -> GpuCode | None:
    """Return for which GPUs shared objects have code, None where none has a fat binary."""
    cubins: set[int] = set()
    ptx: set[int] = set()
    for file in files:
        for kind, capability in _entries(file):
            (ptx if kind == PTX else cubins).add(capability)
    return GpuCode(frozenset(cubins), frozenset(ptx)) if cubins or ptx else None


def _entries(file: ElfFile) -> Iterable[tuple[int, int]]:
    start, size = file.fat
    end, regions = min(start + size, len(file.view)), 0
    while start + _REGION.size <= end and regions < MOST_REGIONS:
        magic, _, header, length = _REGION.unpack_from(file.view, start)
        if magic != MAGIC:
            start += ALIGNMENT
            continue
        regions += 1
        offset, last = start + header, min(start + header + length, end)
        while offset + _ENTRY.size <= last:
            kind, _, own, content, _, _, _, _, capability = _ENTRY.unpack_from(file.view, offset)
            if kind not in (PTX, CUBIN) or not own:
                break
            yield kind, capability
            offset += own + content
        start = max(start + header + length, start + ALIGNMENT)
