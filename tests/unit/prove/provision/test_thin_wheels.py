"""Wheels with fat binaries that this test writes; which entries a GPU needs is decided apart from the files."""

from __future__ import annotations

import base64
import csv
import ctypes
import hashlib
import io
import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.errors import MatrixError
from matrix.prove.provision import thin_wheels
from matrix.prove.provision.resolution import IndexFile
from matrix.prove.provision.thin_wheels import capability, cut, is_thin, make_thin, unused
from matrix.read.elf.elf_file import CUBIN, MAGIC, PTX, FatBinary, FatEntry, GpuCode, fat_binaries, gpu_code, read_elf
from tests.unit.read.elf.objects import needs_compiler, shared

SMS = (70, 75, 80, 86, 89, 90, 100, 103, 120)
entries = st.lists(st.tuples(st.sampled_from([PTX, CUBIN]), st.sampled_from(SMS), st.binary(min_size=1, max_size=40)))


def fat_binary(*content: tuple[int, int, bytes], kind: int | None = None) -> bytes:
    """Return a fat binary with (kind, capability, code); with `kind`, every entry states this one."""
    body = b"".join(
        struct.pack("<HHIQIIHHI32x", kind or one, 0, 64, len(code), 0, 0, 0, 0, sm) + code for one, sm, code in content
    )
    return struct.pack("<IHHQ", MAGIC, 1, 16, len(body)) + body + bytes(-len(body) % 8)


@given(st.lists(entries, max_size=4), st.sampled_from(SMS))
def test_gpu_keeps_its_code_and_nothing_moves(content: list[list[tuple[int, int, bytes]]], gpu: int) -> None:
    section = b"".join(fat_binary(*((kind, sm, b"\1" + code) for kind, sm, code in one)) for one in content)
    binaries = [*fat_binaries(memoryview(section), 0, len(section))]
    thin, found = bytearray(section), cut(binaries, gpu)
    for start, end in found.ranges:
        thin[start:end] = bytes(end - start)
    outside = {index for binary in binaries for entry in binary.entries for index in range(entry.start, entry.end)}
    assert all(section[i] == thin[i] for i in range(len(section)) if i not in outside)
    assert [*fat_binaries(memoryview(thin), 0, len(thin))] == binaries
    for binary in binaries:
        left = {(entry.kind, entry.capability) for entry in binary.entries if any(thin[entry.start : entry.end])}
        cubins, ptx = (
            {sm for one, sm in {(e.kind, e.capability) for e in binary.entries} if one == kind} for kind in (CUBIN, PTX)
        )
        sm, before = f"{gpu // 10}.{gpu % 10}", GpuCode(frozenset(cubins), frozenset(ptx))
        after = GpuCode(*(frozenset(sm for one, sm in left if one == kind) for kind in (CUBIN, PTX)))
        assert after.runs_on(sm) == before.runs_on(sm)
        assert gpu not in cubins or left == {(CUBIN, gpu)}


@pytest.mark.parametrize(
    ("content", "gpu", "kept"),
    [
        ([(CUBIN, 80), (CUBIN, 90), (PTX, 90)], 90, [(CUBIN, 90)]),
        ([(CUBIN, 80), (PTX, 80), (PTX, 100)], 90, [(PTX, 80)]),
        ([(CUBIN, 80), (CUBIN, 90), (PTX, 80)], 86, [(CUBIN, 80), (PTX, 80)]),
        ([(CUBIN, 90)], 80, []),
    ],
)
def test_ptx_stays_where_no_code_is(content: list[tuple[int, int]], gpu: int, kept: list[tuple[int, int]]) -> None:
    listed = [FatEntry(kind, sm, 0, 1) for kind, sm in content]
    left_out = unused(listed, gpu)
    assert [(entry.kind, entry.capability) for entry in listed if entry not in left_out] == kept


def test_unknown_entry_keeps_the_library_whole() -> None:
    unknown = fat_binary((CUBIN, 80, b"code"), kind=8)
    whole = fat_binary((CUBIN, 80, b"code"))
    section = memoryview(whole + unknown)
    assert cut([*fat_binaries(section, 0, len(section))], 90).why == "a fat binary with entries that are not known"
    assert not FatBinary((), whole=False).whole
    assert not next(fat_binaries(memoryview(whole[:-8]), 0, len(whole) - 8)).whole


@pytest.mark.parametrize(("text", "sm"), [("90", "9.0"), ("9.0", "9.0"), ("120", "12.0"), ("8.6", "8.6")])
def test_capability_has_two_spellings(text: str, sm: str) -> None:
    assert capability(text) == sm


@pytest.mark.parametrize("text", ["9", "sm_90", "h100", "90a"])
def test_other_capability_is_refused(text: str) -> None:
    with pytest.raises(MatrixError, match="no compute capability"):
        capability(text)


def fat_wheel(folder: Path, code: bytes, source: str = "") -> IndexFile:
    """Write a wheel with one library, a text named like one, and their RECORD; return it as the index lists it."""
    (folder / "code").write_bytes(code)
    assembly = rf".section .nv_fatbin,\"a\"\n.incbin \"{folder / 'code'}\"\n.text"
    library = shared(folder / "a.so", f'__asm__("{assembly}");{source}').read_bytes()
    files = {"p/liba.so.2": library, "p/notes.so": b"no library", "p/__init__.py": b""}
    record = [f"{name},sha256={hashed(content)},{len(content)}" for name, content in files.items()]
    path = folder / "b/wheels/p-1-py3-none-any.whl"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
        wheel.writestr("p-1.dist-info/RECORD", "\n".join([*record, "p-1.dist-info/RECORD,,"]) + "\n")
    return IndexFile(path.name, path.as_uri(), path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())


def hashed(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


@needs_compiler
def test_thin_wheel_is_a_wheel(tmp_path: Path) -> None:
    """Its RECORD has the hashes of what is in it, sizes are the same, and `linking` finds the code that is left."""
    file = fat_wheel(tmp_path, fat_binary((CUBIN, 80, b"x" * 200_000), (CUBIN, 90, b"y" * 64)))
    path = tmp_path / "b/wheels" / file.name
    cuts = make_thin(path, "9.0", file)
    assert (cuts["p/liba.so.2"].size, cuts["p/liba.so.2"].code, cuts["p/notes.so"].why) == (
        200_000,
        200_064,
        "no ELF file",
    )
    with zipfile.ZipFile(path) as wheel:
        rows = csv.reader(io.StringIO(wheel.read("p-1.dist-info/RECORD").decode()))
        assert all(
            (f"sha256={hashed(content)}", str(len(content))) == (row[1], row[2])
            for row in rows
            if row[1] and (content := wheel.read(row[0])) is not None
        )
        (tmp_path / "thin.so").write_bytes(wheel.read("p/liba.so.2"))
    assert gpu_code([read_elf(tmp_path / "thin.so")]) == GpuCode(frozenset({90}))
    assert is_thin(path, "9.0", file.sha256)
    assert not is_thin(path, "8.0", file.sha256)
    assert [*path.parent.parent.iterdir()] == [path.parent]
    assert "9000" not in thin_wheels.described(path, cuts)[1]


@needs_compiler
def test_debug_symbols_are_left_out(tmp_path: Path) -> None:
    """The library loads as before; a section of this name that is loaded stays."""
    sections = r".section .debug_info\n.zero 300000, 1\n.section .debug_kept,\"a\"\n.ascii \"kept\"\n.text"
    source = f'__asm__("{sections}"); int answer(void) {{ return 42; }}'
    file = fat_wheel(tmp_path, b"", source)
    path = tmp_path / "b/wheels" / file.name
    assert make_thin(path, "9.0", file)["p/liba.so.2"].size == 300_000
    with zipfile.ZipFile(path) as wheel:
        thin = wheel.read("p/liba.so.2")
    (tmp_path / "thin.so").write_bytes(thin)
    assert ctypes.CDLL(str(tmp_path / "thin.so")).answer() == 42
    assert (b"\1" * 8 in thin, b"kept" in thin) == (False, True)


@needs_compiler
@pytest.mark.parametrize("other", [b"", b"x" * 9000])
def test_wheel_with_little_other_code_is_unchanged(other: bytes, tmp_path: Path) -> None:
    file = fat_wheel(tmp_path, fat_binary((CUBIN, 80, other), (CUBIN, 90, b"y" * 64)))
    path = tmp_path / "b/wheels" / file.name
    make_thin(path, "9.0", file)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256
