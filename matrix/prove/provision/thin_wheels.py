"""Thin wheels: device code of other GPUs, and debug symbols, are left out of a bundle for one compute capability.

A shared object has machine code for each GPU in fat binaries. What the GPU does not take becomes zeros, and the headers
stay: the layout of the file is the same, and zeros compress to nothing. So do sections with debug symbols, which no
process loads: 327 of 473 MB of triton 3.0's library. A library with a fat binary that is not understood stays whole.
RECORD of the wheel has the hashes of what is in it.
"""

from __future__ import annotations

import copy
import csv
import hashlib
import io
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from matrix.ground.catalog.regular_file import sha256
from matrix.ground.catalog.schema import read_toml
from matrix.ground.errors import MatrixError
from matrix.prove.provision.bundle_folder import BLOCK
from matrix.prove.provision.project import recorded_hash
from matrix.prove.provision.resolution import PARTIAL, IndexFile
from matrix.read.elf.elf_file import (
    CUBIN,
    FAT_BINARY,
    PTX,
    RELOCATABLE,
    ElfError,
    FatBinary,
    FatEntry,
    fat_binaries,
    read_elf,
)

LIBRARY: Final = re.compile(r"\.so(\.\d+)*$")
RECORD: Final = re.compile(r"[^/]+\.dist-info/RECORD")
MB: Final = 1e6  # bytes
LEAST: Final = 100_000  # bytes that are left out of a wheel, or it stays as it is
UNPACKED: Final = 3  # times a wheel: it, its libraries, and the thin one
CAPABILITY: Final = re.compile(r"(\d{1,2})\.?(\d)")


@dataclass(frozen=True)
class Cut:
    """What is left out of one shared object: `ranges` of its bytes, of `code` bytes of device code and debug symbols.

    `why` is the reason why it stays whole, "" without one.
    """

    ranges: tuple[tuple[int, int], ...] = ()
    code: int = 0
    why: str = ""

    @property
    def size(self) -> int:
        """Return the bytes that are left out."""
        return sum(end - start for start, end in self.ranges)


def capability(text: str) -> str:
    """Return a compute capability, "9.0" or "90", as "9.0". Raises MatrixError for anything else."""
    if match := CAPABILITY.fullmatch(text):
        return f"{match[1]}.{match[2]}"
    raise MatrixError("no compute capability", got=f"--sm {text}", expected="90, or 9.0", fix="--sm 90, for an H100")


def unused(entries: Sequence[FatEntry], gpu: int) -> list[FatEntry]:
    """Return the entries of a fat binary that a GPU does not take; `gpu` is 10 * major + minor.

    Machine code for the GPU itself is all that it takes. Without it, that of its major and an earlier minor may run,
    and PTX that is not newer is compiled for it.
    """
    if any(entry.kind == CUBIN and entry.capability == gpu for entry in entries):
        return [entry for entry in entries if entry.kind == PTX or entry.capability != gpu]
    return [
        entry
        for entry in entries
        if entry.capability > gpu or (entry.kind == CUBIN and entry.capability // 10 != gpu // 10)
    ]


def cut(binaries: Sequence[FatBinary], gpu: int, debugging: Sequence[tuple[int, int]] = ()) -> Cut:
    """Return what is left out of a shared object with these fat binaries and ranges of debug symbols."""
    if not all(binary.whole for binary in binaries):
        return Cut(why="a fat binary with entries that are not known")
    entries = [entry for binary in binaries for entry in binary.entries]
    ranges = [(entry.start, entry.end) for binary in binaries for entry in unused(binary.entries, gpu)]
    symbols = sum(end - start for start, end in debugging)
    return Cut((*ranges, *debugging), sum(entry.end - entry.start for entry in entries) + symbols)


def cut_of(path: Path, sm: str) -> Cut:
    """Return what is left out of a file for a compute capability; nothing of one that is no shared object."""
    try:
        file = read_elf(path)
    except ElfError as error:
        return Cut(why=str(error.got))
    sections = [file.section(name) for name in (FAT_BINARY, RELOCATABLE)]
    binaries = [binary for section in sections for binary in fat_binaries(file.view, *section)]
    return cut(binaries, int(sm.replace(".", "")), file.debugging)


def blank(path: Path, ranges: Sequence[tuple[int, int]]) -> None:
    """Write zeros over ranges of a file."""
    with path.open("r+b") as writing:
        for start, end in ranges:
            writing.seek(start)
            for position in range(start, end, BLOCK):
                writing.write(bytes(min(BLOCK, end - position)))


def mark(sm: str, sha256: str) -> bytes:
    """Return the comment of a thin wheel, by which it is known; `sha256` is that of the wheel of the index."""
    return f"megatrix bundle --sm {sm}, of {sha256}".encode()


def is_thin(path: Path, sm: str, sha256: str) -> bool:
    """Return whether a wheel is there, and was made thin of this one of the index."""
    try:
        with zipfile.ZipFile(path) as wheel:
            return wheel.comment == mark(sm, sha256)
    except (OSError, zipfile.BadZipFile):
        return False


def share(name: str) -> float:
    """Return which part of a wheel's bytes a thin one is expected to have."""
    shares = read_toml(Path(__file__).with_name("thin_shares.toml"))
    return next((part for start, part in shares.items() if name.startswith(start)), 1.0)


def described(path: Path, cuts: Mapping[str, Cut]) -> list[str]:
    """Return what was left out of a wheel, and which of its libraries stay whole and why, in words."""
    lines = [f"{name}: stays whole: {decision.why}" for name, decision in cuts.items() if decision.why]
    if left_out := sum(decision.size for decision in cuts.values()) / MB:
        code, size = sum(decision.code for decision in cuts.values()) / MB, path.stat().st_size / MB
        lines.append(
            f"{path.name}: {left_out:.0f} of {code:.0f} MB of device code and debug symbols left out, now {size:.0f} MB"
        )
    return lines


def make_thin(path: Path, sm: str, file: IndexFile) -> dict[str, Cut]:
    """Replace a wheel of the index by a thin one, where a library has code of other GPUs; return what each had."""
    part = path.with_name(f"{path.name}.thin{PARTIAL}")
    with zipfile.ZipFile(path) as wheel, tempfile.TemporaryDirectory(".thin", dir=path.parent.parent) as folder:
        cuts = dict(_cut_libraries(wheel, Path(folder), sm))
        if sum(decision.size for decision in cuts.values()) < LEAST:
            return {name: Cut(why=decision.why) for name, decision in cuts.items()}
        changed = {name: Path(folder, _flat(name)) for name, decision in cuts.items() if decision.ranges}
        _write(wheel, part, changed, mark(sm, file.sha256))
    part.replace(path)
    return cuts


def _flat(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def _cut_libraries(wheel: zipfile.ZipFile, folder: Path, sm: str) -> Iterator[tuple[str, Cut]]:
    """Write the shared objects that have device code of other GPUs into a folder, without it."""
    for name in (name for name in wheel.namelist() if LIBRARY.search(name)):
        path = folder / _flat(name)
        with wheel.open(name) as reading, path.open("wb") as writing:
            shutil.copyfileobj(reading, writing, BLOCK)
        decision = cut_of(path, sm)
        if decision.ranges:
            blank(path, decision.ranges)
        else:
            path.unlink()
        if decision.code or decision.why:
            yield name, decision


def _write(wheel: zipfile.ZipFile, target: Path, changed: Mapping[str, Path], comment: bytes) -> None:
    """Write a wheel with other files in place of some of its own, and its RECORD."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as thin:
        thin.comment = comment
        for info in wheel.infolist():
            member = copy.copy(info)
            member.extra, member.compress_type = b"", zipfile.ZIP_DEFLATED
            if RECORD.fullmatch(info.filename):
                thin.writestr(member, recorded(wheel.read(info).decode(), changed))
                continue
            path = changed.get(info.filename)
            with path.open("rb") if path else wheel.open(info) as reading, thin.open(member, "w") as writing:
                shutil.copyfileobj(reading, writing, BLOCK)


def recorded(text: str, changed: Mapping[str, Path]) -> str:
    """Return a RECORD with the hashes of the files that changed; their sizes are the same."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    for row in csv.reader(io.StringIO(text)):
        if row and (path := changed.get(row[0])):
            row[1] = recorded_hash(bytes.fromhex(sha256(path)))
        writer.writerow(row)
    return lines.getvalue()
