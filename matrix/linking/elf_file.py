"""Read the parts of an ELF file that the dynamic linker reads: needed libraries, symbols, versions.

pyelftools reads the headers. Its tables of symbols take 20 us for each symbol, and torch's libraries have 200,000: here
symbols are found by the hash table of .gnu.hash, at their offsets in the mapped file.

Sources: the ELF gABI (headers, dynamic section, DT_HASH), the LSB (versions of symbols), binutils' elflink.c
(DT_GNU_HASH).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Final

from elftools.common.exceptions import ELFError
from elftools.construct import ConstructError
from elftools.elf.elffile import ELFFile

from matrix.catalog.regular_file import open_regular
from matrix.errors import MatrixError

HIDDEN: Final = 0x8000  # of an entry of .gnu.version: the default of another version
MACHINES: Final = {"EM_X86_64": "x86-64", "EM_AARCH64": "aarch64", "EM_386": "x86", "EM_PPC64": "ppc64le"}
WEAK, LOCAL = 2, 0  # bindings of symbols
_SYMBOL: Final = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
_NEED: Final = struct.Struct("<HHIII")  # version, count, file, auxiliary, next
_NEED_VERSION: Final = struct.Struct("<IHHII")  # hash, flags, index, name, next
_DEFINITION: Final = struct.Struct("<HHHHIII")  # version, flags, index, count, hash, auxiliary, next
_RELOCATION: Final = struct.Struct("<QQQ")  # offset, info, addend
MOST_VERSIONS: Final = 4096  # of one file; a damaged count has no end
LONGEST_NAME: Final = 65536  # bytes of a symbol's name; template code has names of some thousand
DAMAGED: Final = (
    ELFError,
    ConstructError,
    struct.error,
    IndexError,
    ValueError,
    KeyError,
    OverflowError,
    AttributeError,
    OSError,
)


class ElfError(MatrixError):
    """A file that is no ELF file, is damaged, or is none for 64-bit little-endian machines."""


@dataclass(frozen=True)
class SymbolReference:
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
    needed: tuple[str, ...]
    soname: str
    rpath: tuple[str, ...]
    runpath: tuple[str, ...]
    interpreter: str
    tags: Mapping[str, int]
    loads: tuple[tuple[int, int, int], ...]
    fat: tuple[int, int]  # offset and size of .nv_fatbin
    view: memoryview = field(repr=False)

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
        end = self._map_find(start)
        return bytes(self.view[start:end]).decode("utf-8", "replace")

    def _map_find(self, start: int) -> int:
        source = self.view.obj
        end = source.find(b"\0", start, start + LONGEST_NAME) if isinstance(source, mmap.mmap | bytes) else -1
        if end < 0:
            raise damaged(self.path, "a text without an end")
        return end

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
        versions, names = self.at("DT_VERSYM"), self.need_names
        found = []
        table = self.view[start : start + self.symbol_count * _SYMBOL.size]
        for index, (name, info, _, section, _, _) in enumerate(_SYMBOL.iter_unpack(table)):
            if section or not name or info >> 4 in (WEAK, LOCAL):
                continue
            version = struct.unpack_from("<H", self.view, versions + 2 * index)[0] if versions >= 0 else 0
            found.append(SymbolReference(self.text(name), names.get(version & ~HIDDEN, "")))
        return tuple(found)

    @cached_property
    def required(self) -> tuple[RequiredVersion, ...]:
        """The versions that libraries must define."""
        return tuple(version for _, version in self._needs())

    @cached_property
    def need_names(self) -> dict[int, str]:
        """The names of the versions that .gnu.version refers to."""
        return {index & ~HIDDEN: need.version for index, need in self._needs()}

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
        start, encoded = self._strings + index, name.encode()
        return bytes(self.view[start : start + len(encoded) + 1]) == encoded + b"\0"

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
        got = f"a file of {'32' if magic[4:5] == b'1' else '32 or another number of'} bits or big-endian"
        raise ElfError(
            "not a shared object of this machine", where=str(path), got=got, expected="64 bits, little-endian"
        )
    try:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        file.seek(0)
        elf = ELFFile(file)
        parsed = _headers(path, elf, memoryview(mapped))
        _ = parsed.references, parsed.required, parsed.definitions  # cached: a damaged table is an error of the file
        return parsed
    except DAMAGED as error:
        raise damaged(path, f"{type(error).__name__}: {error}".rstrip(": ")) from None


def _headers(path: Path, elf: Any, view: memoryview) -> ElfFile:
    tags: dict[str, int] = {}
    needed, loads, interpreter, dynamic = [], [], "", None
    for segment in elf.iter_segments():
        header = segment.header
        if header.p_type == "PT_LOAD":
            if header.p_offset + header.p_filesz > len(view):
                raise damaged(path, f"{len(view):,} bytes; a segment ends at {header.p_offset + header.p_filesz:,}")
            loads.append((header.p_vaddr, header.p_offset, header.p_filesz))
        elif header.p_type == "PT_INTERP":
            interpreter = segment.get_interp_name()
        elif header.p_type == "PT_DYNAMIC":
            dynamic = segment
    for tag in dynamic.iter_tags() if dynamic else ():
        name = str(tag.entry.d_tag)
        if name == "DT_NEEDED":
            needed.append(tag.needed)
        tags.setdefault(name, tag.entry.d_val)
    machine = MACHINES.get(elf["e_machine"], str(elf["e_machine"]))
    parsed = ElfFile(path, machine, tuple(needed), "", (), (), interpreter, tags, tuple(loads), (0, 0), view)
    names = ("DT_SONAME", "DT_RPATH", "DT_RUNPATH")
    texts = {name: parsed.text(tags[name]) if name in tags else "" for name in names}
    fat = elf.get_section_by_name(".nv_fatbin")
    parsed.soname = texts["DT_SONAME"]
    parsed.rpath, parsed.runpath = (tuple(filter(None, texts[name].split(":"))) for name in ("DT_RPATH", "DT_RUNPATH"))
    if fat is not None:
        parsed.fat = (fat["sh_offset"], fat["sh_size"])
    return parsed
