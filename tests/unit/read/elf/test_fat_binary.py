from __future__ import annotations

import struct
from pathlib import Path

import pytest

from matrix.read.elf.elf_file import CUBIN, MAGIC, PTX, ElfFile, GpuCode, gpu_code, read_elf
from tests.unit.read.elf.objects import needs_compiler, shared

pytestmark = needs_compiler


def region(*entries: tuple[int, int]) -> bytes:
    """Return a fat binary with (kind, capability), each with 16 bytes of code."""
    body = b"".join(struct.pack("<HHIQIIHHI32x", kind, 0, 64, 16, 0, 0, 0, 0, sm) + b"code" * 4 for kind, sm in entries)
    return struct.pack("<IHHQ", MAGIC, 1, 16, len(body)) + body


def fat_file(folder: Path, content: bytes) -> ElfFile:
    (folder / "code").write_bytes(content)
    assembly = rf".section .nv_fatbin,\"a\"\n.incbin \"{folder / 'code'}\"\n.text"
    return read_elf(shared(folder / "a.so", f'__asm__("{assembly}");'))


def test_capabilities_of_all_regions(tmp_path: Path) -> None:
    content = region((CUBIN, 80), (CUBIN, 90)) + bytes(24) + region((PTX, 90))
    assert gpu_code([fat_file(tmp_path, content)]) == GpuCode(frozenset({80, 90}), frozenset({90}))


def test_damaged_regions_end(tmp_path: Path) -> None:
    for length in range(0, 90, 9):
        gpu_code([fat_file(tmp_path, region((CUBIN, 80))[:length])])
    assert gpu_code([fat_file(tmp_path, bytes(64))]) is None


@pytest.mark.parametrize("field", [40, 58, 60, 62])
def test_damaged_table_of_sections_has_no_code(tmp_path: Path, field: int) -> None:
    """The linker does not read sections: the file itself is whole."""
    content = bytearray(fat_file(tmp_path, region((CUBIN, 80))).path.read_bytes())
    content[field : field + 2] = b"\xff\xff"
    (tmp_path / "damaged.so").write_bytes(content)
    assert gpu_code([read_elf(tmp_path / "damaged.so")]) is None


@pytest.mark.parametrize(
    ("cubins", "ptx", "sm", "runs"),
    [
        ({80}, set(), "8.0", True),
        ({80}, set(), "8.6", True),
        ({86}, set(), "8.0", False),
        ({80}, set(), "9.0", False),
        ({80, 90}, set(), "12.0", False),
        ({80}, {90}, "12.0", True),
        ({80}, {90}, "7.5", False),
    ],
)
def test_code_runs_on_newer_minors(cubins: set[int], ptx: set[int], sm: str, runs: bool) -> None:
    assert GpuCode(frozenset(cubins), frozenset(ptx)).runs_on(sm) is runs
