"""Read the parts of an ELF file that the dynamic linker reads: needed libraries, symbols, versions.

Tables are read at their offsets in the mapped file, and symbols are found by its hash table; docs/loading.md has the
reason for a reader of its own.

Sources: the ELF gABI (headers, sections, dynamic section, DT_HASH), the LSB (versions of symbols), binutils' elflink.c
(DT_GNU_HASH). Of the fat binaries in .nv_fatbin, whose headers state for which GPUs there is code: files that nvcc of
CUDA 13.0 made with several -gencode, and wheels. A region has a header with magic and size, each entry a header with
kind, sizes, and the compute capability. The code itself, compressed or not, is not read.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from matrix.ground.catalog.regular_file import open_regular
from matrix.ground.errors import MatrixError

HIDDEN: Final = 0x8000  # of an entry of .gnu.version: the default of another version
MACHINES: Final = {62: "x86-64", 183: "aarch64", 3: "x86", 21: "ppc64le", 243: "riscv64"}
LOADED, DYNAMIC = 1, 2  # types of segments
TAGS: Final = {  # entries of the dynamic section that are read
    1: "DT_NEEDED",
    2: "DT_PLTRELSZ",
    4: "DT_HASH",
    5: "DT_STRTAB",
    6: "DT_SYMTAB",
    7: "DT_RELA",
    8: "DT_RELASZ",
    14: "DT_SONAME",
    15: "DT_RPATH",
    23: "DT_JMPREL",
    29: "DT_RUNPATH",
    0x6FFFFEF5: "DT_GNU_HASH",
    0x6FFFFFF0: "DT_VERSYM",
    0x6FFFFFFC: "DT_VERDEF",
    0x6FFFFFFD: "DT_VERDEFNUM",
    0x6FFFFFFE: "DT_VERNEED",
    0x6FFFFFFF: "DT_VERNEEDNUM",
}
FAT_BINARY: Final = b".nv_fatbin\0"
DEBUG: Final = b".debug_"  # the start of the names of sections with debug symbols
_LOADED: Final = 2  # SHF_ALLOC, of a section's flags
RELOCATABLE: Final = b"__nv_relfatbin\0"  # what nvcc linked into the other: no driver reads it
WEAK, LOCAL = 2, 0  # bindings of symbols
# The header, after magic, class and byte order: machine, offsets of segments and sections, their sizes and numbers.
_HEADER: Final = struct.Struct("<16x2xH4x8xQQ4x2xHHHHH")
_SEGMENT: Final = struct.Struct("<I4xQQ8xQ16x")  # type, offset, address, size in the file
_SECTION: Final = struct.Struct("<I4xQ8xQQ24x")  # name, flags, offset, size
_DYNAMIC: Final = struct.Struct("<qQ")  # tag, value
_SYMBOL: Final = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
_NEED: Final = struct.Struct("<HHIII")  # version, count, file, auxiliary, next
_NEED_VERSION: Final = struct.Struct("<IHHII")  # hash, flags, index, name, next
_DEFINITION: Final = struct.Struct("<HHHHIII")  # version, flags, index, count, hash, auxiliary, next
_RELOCATION: Final = struct.Struct("<QQQ")  # offset, info, addend
MOST_VERSIONS: Final = 4096  # of one file; a damaged count has no end
LONGEST_NAME: Final = 65536  # bytes of a symbol's name; template code has names of some thousand
DAMAGED: Final = (struct.error, IndexError, ValueError, OverflowError, OSError)


class ElfError(MatrixError):
    """A file that is no ELF file, is damaged, or is none for 64-bit little-endian machines."""


class SymbolReference(NamedTuple):
    """A symbol that an object takes from others: its name, its version ("GLIBC_2.14") or ""."""

    name: str
    version: str = ""


@dataclass(frozen=True)
class RequiredVersion:
    """A version of a library that an object needs: `weak` ones are not checked."""

    library: str
    version: str
    weak: bool = False


@dataclass(eq=False)
class ElfFile:
    """A shared object or program; `tags` are its dynamic entries, `loads` address, offset and size of its segments."""

    path: Path
    machine: str
    tags: Mapping[str, int]
    loads: tuple[tuple[int, int, int], ...]
    names: tuple[int, ...]  # of needed libraries: their places in the table of strings
    mapped: mmap.mmap = field(repr=False)

    @cached_property
    def view(self) -> memoryview:
        """The content of the file."""
        return memoryview(self.mapped)

    @cached_property
    def needed(self) -> tuple[str, ...]:
        """The libraries that it needs."""
        return tuple(map(self.text, self.names))

    @cached_property
    def soname(self) -> str:
        """The name by which others need it, "" without one."""
        return self._tagged("DT_SONAME")

    @cached_property
    def rpath(self) -> tuple[str, ...]:
        """The folders that are searched for its libraries and theirs."""
        return tuple(filter(None, self._tagged("DT_RPATH").split(":")))

    @cached_property
    def runpath(self) -> tuple[str, ...]:
        """The folders that are searched for its libraries alone."""
        return tuple(filter(None, self._tagged("DT_RUNPATH").split(":")))

    def _tagged(self, tag: str) -> str:
        return self.text(self.tags[tag]) if tag in self.tags else ""

    @cached_property
    def fat(self) -> tuple[int, int]:
        """The offset and size of section .nv_fatbin, (0, 0) without one."""
        return self.section(FAT_BINARY)

    def section(self, name: bytes) -> tuple[int, int]:
        """Return the offset and size of a section, (0, 0) without one: the linker does not read sections."""
        return next(((start, length) for start, length, _ in self._sections(name)), (0, 0))

    @property
    def debugging(self) -> list[tuple[int, int]]:
        """The start and end of each section with debug symbols, which no process loads."""
        found = self._sections(DEBUG)
        return [
            (start, start + size) for start, size, loaded in found if not loaded and start + size <= len(self.mapped)
        ]

    def _sections(self, name: bytes) -> Iterator[tuple[int, int, bool]]:
        """Yield offset and size of the sections whose names start so, and whether a process loads them."""
        _, _, position, _, _, size, count, strings = _HEADER.unpack_from(self.mapped)
        if size != _SECTION.size or strings >= count or position + count * size > len(self.mapped):
            return
        sections = list(_SECTION.iter_unpack(self.view[position : position + count * size]))
        texts = sections[strings][2]
        yield from ((row[2], row[3], bool(row[1] & _LOADED)) for row in sections if self._has(texts + row[0], name))

    def _has(self, start: int, content: bytes) -> bool:
        return self.mapped[start : start + len(content)] == content

    def at(self, tag: str) -> int:
        """Return the offset in the file of the table that a dynamic entry names, -1 without one."""
        address = self.tags.get(tag)
        return -1 if address is None else self.offset(address)

    def offset(self, address: int) -> int:
        """Return the offset in the file of an address. Raises ElfError for one outside of the file."""
        for start, position, size in self.loads:
            if start <= address < start + size:
                return address - start + position
        raise damaged(self.path, f"address {address:#x} is in no segment")

    def text(self, index: int) -> str:
        """Return a text of the table of strings."""
        start = self._strings + index
        end = self.mapped.find(b"\0", start, start + LONGEST_NAME)
        if end < 0:
            raise damaged(self.path, "a text without an end")
        return self.mapped[start:end].decode("utf-8", "replace")

    @cached_property
    def _strings(self) -> int:
        return self.at("DT_STRTAB")

    @cached_property
    def _hash(self) -> GnuHash | None:
        start = self.at("DT_GNU_HASH")
        return GnuHash.read(self.view, start) if start >= 0 else None

    @cached_property
    def symbol_count(self) -> int:
        """The number of symbols before those with a hash, all undefined or local. Without .gnu.hash: of all."""
        if self._hash:
            return self._hash.first
        start = self.at("DT_HASH")
        return int(struct.unpack_from("<II", self.view, start)[1]) if start >= 0 else 0

    @cached_property
    def references(self) -> tuple[SymbolReference, ...]:
        """The symbols that must be defined by some object; weak ones may be missing."""
        start = self.at("DT_SYMTAB")
        if start < 0:
            return ()
        table = self.view[start : start + self.symbol_count * _SYMBOL.size]
        count = len(table) // _SYMBOL.size
        position, names = self.at("DT_VERSYM"), {index & ~HIDDEN: need.version for index, need in self._needs()}
        versions = self.view[position : position + 2 * count].cast("H") if position >= 0 else [0] * count
        return tuple(
            SymbolReference(self.text(name), names.get(version & ~HIDDEN, ""))
            for (name, info, _, section, _, _), version in zip(_SYMBOL.iter_unpack(table), versions, strict=True)
            if name and not section and info >> 4 not in (WEAK, LOCAL)
        )

    @cached_property
    def required(self) -> tuple[RequiredVersion, ...]:
        """The versions that libraries must define."""
        return tuple(version for _, version in self._needs())

    def _needs(self) -> Iterator[tuple[int, RequiredVersion]]:
        start, count = self.at("DT_VERNEED"), self.tags.get("DT_VERNEEDNUM", 0)
        for _ in range(min(count, MOST_VERSIONS) if start >= 0 else 0):
            _, names, library, auxiliary, step = _NEED.unpack_from(self.view, start)
            offset = start + auxiliary
            for _ in range(min(names, MOST_VERSIONS)):
                _, flags, index, name, onward = _NEED_VERSION.unpack_from(self.view, offset)
                yield index, RequiredVersion(self.text(library), self.text(name), bool(flags & WEAK))
                offset += onward
            start += step

    @cached_property
    def definitions(self) -> dict[int, str]:
        """The versions that the object defines, by their index; the base version is ""."""
        start, count = self.at("DT_VERDEF"), self.tags.get("DT_VERDEFNUM", 0)
        versions = {}
        for _ in range(min(count, MOST_VERSIONS) if start >= 0 else 0):
            _, flags, index, _, _, auxiliary, step = _DEFINITION.unpack_from(self.view, start)
            name = self.text(struct.unpack_from("<I", self.view, start + auxiliary)[0])
            versions[index & ~HIDDEN] = "" if flags & 1 else name
            start += step
        return versions

    def defines(self, reference: SymbolReference, hashed: int) -> bool:
        """Return whether the object defines a symbol in a version; `hashed` is gnu_hash of its name.

        A table that goes past the end of the file defines nothing.
        """
        try:
            return self._defines(reference, hashed)
        except (struct.error, IndexError, MatrixError):
            return False

    def _defines(self, reference: SymbolReference, hashed: int) -> bool:
        defaults = 0
        for index in self._candidates(reference.name, hashed):
            name, info, _, section, value, _ = _SYMBOL.unpack_from(self.view, self._symbols + index * _SYMBOL.size)
            kind = info & 15
            if (not value and kind != 6) or not section or info >> 4 == LOCAL:  # 6: of thread-local storage
                continue
            if not self._is_named(name, reference.name):
                continue
            if self._versions < 0:
                return True
            version = struct.unpack_from("<H", self.view, self._versions + 2 * index)[0]
            mine = self.definitions.get(version & ~HIDDEN, "")
            if reference.version:
                if mine == reference.version or (not mine and not version & HIDDEN):
                    return True
            elif version & ~HIDDEN < 3:
                return True
            else:
                defaults += not version & HIDDEN
        return defaults > 0

    @cached_property
    def _symbols(self) -> int:
        return self.at("DT_SYMTAB")

    @cached_property
    def _versions(self) -> int:
        return self.at("DT_VERSYM")

    def _candidates(self, name: str, hashed: int) -> Iterator[int]:
        if self._hash:
            yield from self._hash.candidates(hashed)
            return
        start = self.at("DT_HASH")
        if start < 0:
            return
        buckets, chains = struct.unpack_from("<II", self.view, start)
        table = self.view[start + 8 : start + 8 + 4 * (buckets + chains)].cast("I")
        index, steps = table[sysv_hash(name) % buckets] if buckets else 0, 0
        while index and steps <= chains:
            yield index
            index, steps = table[buckets + index], steps + 1

    def _is_named(self, index: int, name: str) -> bool:
        return self._has(self._strings + index, name.encode() + b"\0")

    def relocated(self, name: str) -> bool:
        """Return whether a relocation needs an undefined symbol: one in the table alone is never looked up."""
        start = self.at("DT_SYMTAB")
        table = self.view[start : start + self.symbol_count * _SYMBOL.size]
        symbols = {
            index
            for index, (position, _, _, section, _, _) in enumerate(_SYMBOL.iter_unpack(table))
            if not section and self._is_named(position, name)
        }
        for tag, size in (("DT_JMPREL", "DT_PLTRELSZ"), ("DT_RELA", "DT_RELASZ")):
            offset = self.at(tag)
            if offset >= 0:
                end = min(offset + self.tags.get(size, 0), len(self.view))
                entries = _RELOCATION.iter_unpack(self.view[offset : end - (end - offset) % _RELOCATION.size])
                if any(info >> 32 in symbols for _, info, _ in entries):
                    return True
        return False


@dataclass(frozen=True)
class GnuHash:
    """The hash table of an object's symbols; `first` is the first symbol with a hash."""

    first: int
    shift: int
    bloom: memoryview
    buckets: memoryview
    view: memoryview
    chain: int

    @classmethod
    def read(cls, view: memoryview, start: int) -> GnuHash:
        """Read the table at an offset."""
        buckets, first, words, shift = struct.unpack_from("<IIII", view, start)
        offset = start + 16
        bloom = view[offset : offset + 8 * words].cast("Q")
        offset += 8 * words
        table = view[offset : offset + 4 * buckets].cast("I")
        if len(bloom) != words or len(table) != buckets:
            raise ValueError("the hash table goes past the end of the file")
        return cls(first, shift, bloom, table, view, offset + 4 * buckets)

    def candidates(self, hashed: int) -> Iterator[int]:
        """Yield the indices of symbols with this hash."""
        if not self.bloom or not self.buckets:
            return
        mask = (1 << (hashed & 63)) | (1 << ((hashed >> self.shift) & 63))
        if self.bloom[(hashed >> 6) % len(self.bloom)] & mask != mask:
            return
        index = self.buckets[hashed % len(self.buckets)]
        while index >= self.first:
            value = struct.unpack_from("<I", self.view, self.chain + 4 * (index - self.first))[0]
            if value | 1 == hashed | 1:
                yield index
            if value & 1:
                return
            index += 1


def gnu_hash(name: str) -> int:
    """Return the hash of a symbol's name in .gnu.hash."""
    value = 5381
    for byte in name.encode():
        value = value * 33 + byte & 0xFFFFFFFF
    return value


def sysv_hash(name: str) -> int:
    """Return the hash of a symbol's name in .hash."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high & 0xFFFFFFFF
    return value


def damaged(path: Path, got: str) -> ElfError:
    """Return the error of a damaged file."""
    fix = "install the package again: python -m pip install --force-reinstall --no-cache-dir --no-deps PACKAGE"
    return ElfError("the shared object is damaged", where=str(path), got=got, expected="a whole ELF file", fix=fix)


def read_elf(path: Path) -> ElfFile:
    """Read an ELF file, with the tables that the linker reads of each object.

    Raises ElfError for a damaged file, UnreadableError for one that is no regular file.
    """
    with open_regular(path) as file:
        return parse(path, file)


def parse(path: Path, file: BinaryIO) -> ElfFile:
    """Return the headers of an open ELF file, whose tables are then read from the mapped file."""
    magic = file.read(20)
    if magic[:4] != b"\x7fELF":
        got = "an empty file" if not magic else "no ELF file" if len(magic) >= 4 else f"{len(magic)} bytes"
        raise damaged(path, got)
    if magic[4:6] != b"\x02\x01":
        bits = "32 bits" if magic[4:5] == b"\x01" else "32 or another number of bits"
        got = f"a file of {bits}, or big-endian"
        raise ElfError(
            "not a shared object of this machine", where=str(path), got=got, expected="64 bits, little-endian"
        )
    try:
        parsed = _headers(path, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        # cached: a damaged table is an error of the file
        _ = parsed.needed, parsed.soname, parsed.rpath, parsed.runpath
        _ = parsed.references, parsed.required, parsed.definitions
        return parsed
    except DAMAGED as error:
        raise damaged(path, f"{type(error).__name__}: {error}".rstrip(": ")) from None


def _headers(path: Path, mapped: mmap.mmap) -> ElfFile:
    tags: dict[str, int] = {}
    needed, loads, dynamic = [], [], (0, 0)
    machine, segments, _, size, count, _, _, _ = _HEADER.unpack_from(mapped)
    for number in range(count):
        kind, offset, address, length = _SEGMENT.unpack_from(mapped, segments + number * size)
        if kind == LOADED:
            if offset + length > len(mapped):
                raise damaged(path, f"{len(mapped):,} bytes; a segment ends at {offset + length:,}")
            loads.append((address, offset, length))
        elif kind == DYNAMIC:
            dynamic = offset, length
    start, length = dynamic
    for position in range(start, start + length, _DYNAMIC.size):
        tag, value = _DYNAMIC.unpack_from(mapped, position)
        if not tag:
            break
        if name := TAGS.get(tag):
            needed += [value] * (name == "DT_NEEDED")
            tags.setdefault(name, value)
    return ElfFile(path, MACHINES.get(machine, f"machine {machine}"), tags, tuple(loads), tuple(needed), mapped)


MAGIC: Final = 0xBA55ED50
PTX, CUBIN = 1, 2
_REGION: Final = struct.Struct("<IHHQ")  # magic, version, size of this header, size of the entries
_FAT_ENTRY: Final = struct.Struct("<HHIQIIHHI")  # kind, _, header, size, compressed size, _, minor, major, capability
MOST_REGIONS: Final = 20_000
BEGINNING: Final = 64  # bytes of code, none of which has only zeros there: an ELF header, PTX, or compressed
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


class FatEntry(NamedTuple):
    """The code of a fat binary for one compute capability, 10 * major + minor: kind PTX or CUBIN, and its place."""

    kind: int
    capability: int
    start: int
    end: int


class FatBinary(NamedTuple):
    """The entries of a fat binary; `whole` unless it has others, or does not end where its header states."""

    entries: tuple[FatEntry, ...]
    whole: bool


def gpu_code(files: Iterable[ElfFile]) -> GpuCode | None:
    """Return for which GPUs shared objects have code, None where none has a fat binary.

    Code of zeros alone was left out (`megatrix bundle --sm`).
    """
    found: dict[int, set[int]] = {PTX: set(), CUBIN: set()}
    for file in files:
        for entry in (entry for binary in fat_binaries(file.view, *file.fat) for entry in binary.entries):
            if any(file.view[entry.start : min(entry.end, entry.start + BEGINNING)]):
                found[entry.kind].add(entry.capability)
    return GpuCode(frozenset(found[CUBIN]), frozenset(found[PTX])) if any(found.values()) else None


def fat_binaries(view: memoryview, start: int, size: int) -> Iterator[FatBinary]:
    """Yield the fat binaries of a section."""
    end, regions = min(start + size, len(view)), 0
    while start + _REGION.size <= end and regions < MOST_REGIONS:
        magic, _, header, length = _REGION.unpack_from(view, start)
        if magic != MAGIC:
            start += ALIGNMENT
            continue
        regions += 1
        entries, offset, limit = list[FatEntry](), start + header, min(start + header + length, end)
        while offset + _FAT_ENTRY.size <= limit:
            kind, _, header_size, content, _, _, _, _, capability = _FAT_ENTRY.unpack_from(view, offset)
            if kind not in (PTX, CUBIN) or header_size < _FAT_ENTRY.size:
                break
            entries.append(FatEntry(kind, capability, offset + header_size, offset + header_size + content))
            offset += header_size + content
        yield FatBinary(tuple(entries), offset == start + header + length <= end)
        start += max(header + length + -(header + length) % ALIGNMENT, ALIGNMENT)
