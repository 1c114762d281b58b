"""What the dynamic linker does with a shared object: it searches libraries, compares versions, resolves symbols.

Sources: ld.so(8); glibc's elf/dl-load.c (search, names of what is loaded), dl-version.c (versions), dl-lookup.c
(symbols).
`dlopen` with RTLD_NOW, as CPython's import and ctypes call it: every symbol must be defined.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Final

from matrix.ground.catalog.regular_file import UnreadableError, read_regular
from matrix.read.elf.elf_file import ElfError, ElfFile, SymbolReference, gnu_hash, read_elf
from matrix.read.elf.load_facts import ProvidedLibrary

MAGIC: Final = b"glibc-ld.so.cache1.1"
# Flags of an entry: a library of glibc 2 (3) with the ABI of the machine.
FLAGS: Final = {"x86-64": 0x0303, "aarch64": 0x0A03, "ppc64le": 0x0503}
_HEADER: Final = struct.Struct("<20sII20x")
_ENTRY: Final = struct.Struct("<iIIIQ")  # flags, name, path, version of the system, capabilities of the processor
# Folders that are searched last: as built by Debian (with the machine's triplet), Red Hat (lib64) and others.
DEFAULTS: Final = ("/lib/{triplet}", "/usr/lib/{triplet}", "/lib64", "/usr/lib64", "/lib", "/usr/lib")
TRIPLETS: Final = {"x86-64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu", "ppc64le": "powerpc64le-linux-gnu"}
LONGEST_CHAIN: Final = 40  # links that are followed, as Linux does


class ProblemKind(str, Enum):
    """Why an object does not load."""

    LIBRARY = "library"  # a needed library is not found
    VERSION = "version"  # a library lacks a version that an object needs
    SYMBOL = "symbol"  # a symbol is defined nowhere
    FILE = "file"  # the object itself is damaged, of another machine, or no regular file


@dataclass(frozen=True)
class LinkProblem:
    """Why an object does not load: `name` is the library, version or symbol, `by` the object that needs it.

    `library` is the file that lacks a version; `count` is the number of symbols that are missing.
    """

    kind: ProblemKind
    name: str
    by: Path
    library: Path | None = None
    count: int = 1
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class LinkSite:
    """Where the linker searches: `root` of an image ("/" for this machine), LD_LIBRARY_PATH, the cache, the machine."""

    root: Path = Path("/")
    machine: str = "x86-64"
    library_path: tuple[str, ...] = ()
    cache: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, root: Path, machine: str, environ: Mapping[str, str]) -> LinkSite:
        """Return the site of a machine or of an unpacked image."""
        folders = environ.get("LD_LIBRARY_PATH", "").replace(";", ":")
        words = tuple(folder or "." for folder in folders.split(":")) if folders else ()
        return cls(root, machine, words, read_cache(root / "etc/ld.so.cache", machine))

    @property
    def defaults(self) -> list[str]:
        """The folders that are searched last."""
        return [folder.format(triplet=TRIPLETS.get(self.machine, "")) for folder in DEFAULTS]

    def inside(self, path: str) -> Path:
        """Return a file of the site by its path there; absolute links are followed within the root.

        A path that links lead in a circle stays as it is: opening it fails.
        """
        if self.root == Path("/"):
            return Path(path)
        return self._follow(path)

    def _follow(self, path: str) -> Path:
        rest, at, steps = list(PurePosixPath(path).parts), self.root, 0
        while rest:
            part = rest.pop(0)
            if part == "/":
                at = self.root
                continue
            if part == "..":
                at = at.parent if at != self.root else at
                continue
            at = at / part
            if at.is_symlink() and steps < LONGEST_CHAIN:
                steps += 1
                target = PurePosixPath(at.readlink())
                at = at.parent
                rest = [*target.parts, *rest]
        return at


@dataclass(eq=False)
class LoadedObject:
    """An object in a process: its file, the names by which it is found, what needed it, the libraries that it needs."""

    elf: ElfFile
    names: set[str]
    loader: LoadedObject | None = None
    libraries: list[LoadedObject] = field(default_factory=list)

    def breadth_first(self) -> list[LoadedObject]:
        """Return the object and all that it needs, in the order in which symbols are searched."""
        objects = [self]
        for mapped in objects:
            objects += [library for library in dict.fromkeys(mapped.libraries) if library not in objects]
        return objects


class Process:
    """The objects of a process, as they are loaded one after another; `copy` gives an independent process.

    `provided` are libraries that may be missing: a driver brings them.
    """

    def __init__(self, site: LinkSite, provided: Sequence[ProvidedLibrary] = ()) -> None:
        self.site, self.provided = site, provided
        self.objects: list[LoadedObject] = []
        self.visible: list[LoadedObject] = []  # to all: the program, its libraries, and what is opened with RTLD_GLOBAL
        self.files: dict[tuple[int, int], ElfFile] = {}  # by device and inode: read once for all processes
        self.definers: dict[SymbolReference, ElfFile] = {}  # of symbols: a file that defines it

    def copy(self) -> Process:
        """Return a process with the same objects."""
        process = Process(self.site, self.provided)
        process.files, process.definers = self.files, self.definers
        copies = {mapped: LoadedObject(mapped.elf, set(mapped.names)) for mapped in self.objects}
        for mapped, duplicate in copies.items():
            duplicate.loader = copies.get(mapped.loader) if mapped.loader else None
            duplicate.libraries = [copies[library] for library in mapped.libraries]
        process.objects, process.visible = list(copies.values()), [copies[mapped] for mapped in self.visible]
        return process

    def start(self, program: Path) -> tuple[LinkProblem, ...]:
        """Load a program with its libraries, whose symbols are visible to all; return what is missing."""
        main, problems = self._map(program, str(program), None)
        if main:
            problems += self._map_libraries(main)
            self.visible = main.breadth_first()
        return tuple(problems)

    def open(self, path: Path, *, visible: bool = False, name: str = "") -> tuple[LinkProblem, ...]:
        """Load an object as dlopen does; return why it does not load. `name`: a library to search."""
        before = len(self.objects)
        if name:
            opened, problems = self._needed(name, None)
        else:
            opened, problems = self._map(path, str(path), None)
        if opened and not problems:
            problems += self._map_libraries(opened)
        new = self.objects[before:]
        if opened and not problems:
            problems += list(self._wrong_versions(new))
            problems = problems or list(self._undefined(new, [*self.visible, *opened.breadth_first()]))
        if problems or opened is None:
            for mapped in self.objects:
                mapped.libraries = [library for library in mapped.libraries if library not in new]
            del self.objects[before:]
        elif visible:
            self.visible += [mapped for mapped in opened.breadth_first() if mapped not in self.visible]
        return tuple(problems)

    def _map_libraries(self, opened: LoadedObject) -> list[LinkProblem]:
        problems, queue = [], [opened]
        for mapped in queue:
            if mapped.libraries:
                continue
            for name in mapped.elf.needed:
                library, missing = self._needed(name, mapped)
                problems += missing
                if library:
                    mapped.libraries.append(library)
                    queue += [library] * (library not in queue)
        return problems

    def _needed(self, name: str, requester: LoadedObject | None) -> tuple[LoadedObject | None, list[LinkProblem]]:
        by = requester.elf.path if requester else Path(name)
        for mapped in self.objects:
            if name in mapped.names or name == mapped.elf.soname:
                mapped.names.add(name)
                return mapped, []
        for path in self.candidates(name, requester):
            if not path.is_file():
                continue
            try:
                file = self.read(path)
            except (ElfError, UnreadableError):
                if "/" in name:
                    break
                return None, [LinkProblem(ProblemKind.FILE, name, path)]
            if file.machine == self.site.machine:
                return self._map(path, name, requester)
        if any(re.fullmatch(row.library, name) for row in self.provided):
            return None, []
        return None, [LinkProblem(ProblemKind.LIBRARY, name, by)]

    def _map(
        self, path: Path, name: str, requester: LoadedObject | None
    ) -> tuple[LoadedObject | None, list[LinkProblem]]:
        try:
            file = self.read(path)
        except (ElfError, UnreadableError) as error:
            return None, [LinkProblem(ProblemKind.FILE, str(error.got), path)]
        if file.machine != self.site.machine and self.objects:
            return None, [LinkProblem(ProblemKind.FILE, f"a file for {file.machine}", path)]
        for mapped in self.objects:
            if mapped.elf is file:
                mapped.names.add(name)
                return mapped, []
        loaded = LoadedObject(file, {name}, requester)
        self.objects.append(loaded)
        return loaded, []

    def read(self, path: Path) -> ElfFile:
        """Return a file, which is read once. Raises ElfError, UnreadableError."""
        status = path.stat() if path.exists() else None
        key = (status.st_dev, status.st_ino) if status else (0, 0)
        if status is None or key not in self.files:
            file = read_elf(path)
            self.files[key] = file
        return self.files[key]

    def candidates(self, name: str, requester: LoadedObject | None) -> Iterator[Path]:
        """Yield the files that the linker tries for a library that an object needs, in its order."""
        if "/" in name:
            yield from self._expanded([name], requester)
            return
        if not (requester and requester.elf.runpath):
            chain, mapped = [], requester
            while mapped and mapped not in chain:
                chain.append(mapped)
                mapped = mapped.loader
            main = self.objects[0] if self.objects else None
            for owner in (*chain, *([main] if main and main not in chain else [])):
                if not owner.elf.runpath:
                    yield from self._in(self._expanded(owner.elf.rpath, owner), name)
        yield from self._in((self.site.inside(folder) for folder in self.site.library_path), name)
        if requester:
            yield from self._in(self._expanded(requester.elf.runpath, requester), name)
        if name in self.site.cache:
            yield self.site.inside(self.site.cache[name])
        yield from self._in((self.site.inside(folder) for folder in self.site.defaults), name)

    def _in(self, folders: Iterable[Path], name: str) -> Iterator[Path]:
        for folder in folders:
            path = folder / name
            yield path if self.site.root == Path("/") else self.site.inside("/" + self._relative(path))

    def _relative(self, path: Path) -> str:
        return str(path.relative_to(self.site.root)) if path.is_relative_to(self.site.root) else str(path)

    def _expanded(self, folders: Sequence[str], owner: LoadedObject | None) -> Iterator[Path]:
        """Yield folders with $ORIGIN, $LIB and $PLATFORM replaced: $LIB is that of Debian, else lib64."""
        origin = str(owner.elf.path.parent) if owner else "."
        triplet = TRIPLETS.get(self.site.machine, "")
        library = f"lib/{triplet}" if (self.site.root / "lib" / triplet).is_dir() else "lib64"
        values = {"ORIGIN": origin, "LIB": library, "PLATFORM": triplet.partition("-")[0]}
        for folder in folders:
            text = folder
            for key, value in values.items():
                text = text.replace(f"${{{key}}}", value).replace(f"${key}", value)
            yield Path(text) if folder.startswith("$") else self.site.inside(text)

    def _wrong_versions(self, new: Iterable[LoadedObject]) -> Iterator[LinkProblem]:
        for mapped in new:
            for need in mapped.elf.required:
                library = next(
                    (o for o in self.objects if need.library in o.names or need.library == o.elf.soname), None
                )
                defined = library.elf.definitions.values() if library else ()
                if library and defined and not need.weak and need.version not in defined:
                    yield LinkProblem(ProblemKind.VERSION, need.version, mapped.elf.path, library.elf.path)

    def _is_provided(self, user: LoadedObject, symbol: str) -> bool:
        """Return whether a library that the driver provides, and that the object needs, defines a symbol."""
        rows = (row for row in self.provided if any(re.fullmatch(row.library, name) for name in user.elf.needed))
        return any(re.fullmatch(row.symbols, symbol) for row in rows)

    def _undefined(self, new: Iterable[LoadedObject], scope: Iterable[LoadedObject]) -> Iterator[LinkProblem]:
        """Yield, for each object with symbols that nothing defines, the first of them and their number."""
        files = dict.fromkeys(mapped.elf for mapped in scope)
        for mapped in new:
            missing = []
            for reference in mapped.elf.references:
                if self.definers.get(reference) in files:
                    continue
                hashed = gnu_hash(reference.name)
                definer = next((file for file in files if file.defines(reference, hashed)), None)
                if definer:
                    self.definers[reference] = definer
                elif mapped.elf.relocated(reference.name) and not self._is_provided(mapped, reference.name):
                    missing.append(reference.name)
            if missing:
                yield LinkProblem(
                    ProblemKind.SYMBOL, missing[0], mapped.elf.path, count=len(missing), names=tuple(missing)
                )


def read_cache(path: Path, machine: str) -> dict[str, str]:
    """Return the path of each library of a machine's cache; {} where there is none, or none of this format.

    Source: glibc's sysdeps/generic/dl-cache.h. Entries for processors with certain capabilities are left out: the same
    library is also there without them.
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
