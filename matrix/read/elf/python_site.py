"""A Python environment as files: its interpreter, its packages, their compiled files, and what imports open of them.

Nothing is started: folders and names follow CPython's site.py, venv's pyvenv.cfg and Debian's python3.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name

from matrix.ground.catalog.regular_file import UnreadableError, read_regular_text
from matrix.ground.catalog.versions import NONE
from matrix.ground.errors import MatrixError
from matrix.read.elf.dynamic_linker import LinkProblem, LinkSite, ProblemKind, Process
from matrix.read.elf.load_facts import OpenStep, PackageImport, ProvidedLibrary
from matrix.read.machine.installed import torch_cuda

# Interpreters of an unpacked image, in the order of their usual PATH.
INTERPRETERS: Final = (
    "opt/venv/bin/python",
    "usr/local/bin/python3",
    "opt/conda/bin/python3",
    "usr/bin/python3",
    "bin/python3",
)
PACKAGE_FOLDERS: Final = ("lib/python{0}/site-packages", "lib/python{0}/dist-packages", "lib64/python{0}/site-packages")
DEBIAN: Final = ("usr/local/lib/python{0}/dist-packages", "usr/lib/python3/dist-packages")
SHARED_OBJECT: Final = re.compile(r"\.so(?:\.\d+)*$")
_LISTED: Final = re.compile(r'^"?([^,"\n]+\.so(?:\.\d+)*)"?,', re.MULTILINE)
_FIELD: Final = re.compile(r"^(Name|Version|Requires-Dist):[ \t]{0,99}(.+)$", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True)
class CompiledFile:
    """A shared object of a package: `module` is the last part of its name as a module, "" for a library.

    `minor` is the Python that its name states ("3.11"), "" where it states none.
    """

    path: Path
    name: str
    module: str
    minor: str = ""


@dataclass(frozen=True)
class InstalledPackage:
    """A distribution with its compiled files; `name` is canonical, `requires` are its declared requirements.

    `unread` are the files of its metadata that can't be read, each with the reason.
    """

    name: str
    version: str
    folder: Path
    files: tuple[CompiledFile, ...] = ()
    requires: tuple[str, ...] = ()
    unread: tuple[tuple[Path, str], ...] = ()


class LimitedDistribution(importlib.metadata.PathDistribution):
    """A distribution whose files are read within the limits of foreign files: importlib.metadata waits for a FIFO."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path, self.unread = path, dict[Path, str]()

    def read_text(self, filename: str | os.PathLike[str]) -> str | None:
        """Return a file's text, None for a missing one; of METADATA that can't be read, what its folder states."""
        path = self.path / filename
        try:
            return read_regular_text(path)
        except UnreadableError as error:
            if not filename or not os.path.lexists(path):
                return None
            self.unread[path] = str(error.got)
        name, _, version = self.path.stem.partition("-")
        return f"Name: {name}\nVersion: {version or 0}\n" if path.name == "METADATA" else None


def _distributions(folders: Sequence[Path]) -> Iterator[LimitedDistribution]:
    """Yield the distributions in folders of packages, in the order of the folders."""
    for folder in folders:
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.suffix in (".dist-info", ".egg-info"):
                yield LimitedDistribution(path)


@dataclass(frozen=True)
class PythonSite:
    """An interpreter, its minor version, its folders of packages in the order of sys.path, and the linker's site."""

    program: Path
    minor: str
    folders: tuple[Path, ...]
    site: LinkSite
    environ: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def packages(self) -> tuple[InstalledPackage, ...]:
        """The packages, the first of a name alone, and then the compiled files that no package lists."""
        packages: dict[str, InstalledPackage] = {}
        for distribution in _distributions(self.folders):
            fields = _fields(distribution)
            key = canonicalize_name(fields["name"][0]) if "name" in fields else ""
            if key and key not in packages:
                version = fields.get("version", ("",))[0]
                egg = distribution.requires if distribution.read_text("requires.txt") else ()
                requires = tuple(fields.get("requires-dist") or egg or ())
                contents, unread = self._contents(distribution), tuple(distribution.unread.items())
                packages[key] = InstalledPackage(key, version, *contents, requires, unread)
        files = [file for package in packages.values() for file in package.files]
        return (*packages.values(), *_unlisted(self.folders, files))

    def _contents(self, package: importlib.metadata.Distribution) -> tuple[Path, tuple[CompiledFile, ...]]:
        folder = Path(str(package.locate_file("")))
        names = _LISTED.findall(package.read_text("RECORD") or package.read_text("installed-files.txt") or "")
        files = [compiled_file(folder / name, name) for name in names if os.path.lexists(folder / name)]
        return folder, tuple(files)

    @cached_property
    def versions(self) -> dict[str, str]:
        """The version of each package."""
        return {package.name: package.version for package in self.packages}

    def owner(self, path: Path) -> InstalledPackage | None:
        """Return the package that has a file, None for one of the system."""
        return self._owners.get(str(path)) or self._owners.get(os.path.realpath(path))

    @cached_property
    def _owners(self) -> dict[str, InstalledPackage]:
        paths = ((file.path, package) for package in self.packages for file in package.files if package.name)
        return {text: package for path, package in paths for text in (str(path), os.path.realpath(path))}


def _fields(package: importlib.metadata.Distribution) -> dict[str, list[str]]:
    """Return fields of a distribution's metadata; importlib.metadata also parses its description, for 1 ms."""
    text = package.read_text("METADATA") or package.read_text("PKG-INFO") or ""
    fields: dict[str, list[str]] = {}
    for name, value in _FIELD.findall(text.partition("\n\n")[0]):
        fields.setdefault(name.lower(), []).append(value.strip())
    return fields


def _unlisted(folders: Sequence[Path], files: Collection[CompiledFile]) -> Iterator[InstalledPackage]:
    """Yield, by their top folder or name, the shared objects in folders of packages that no package lists."""
    listed = {file.path for file in files}
    tops = {file.name.partition("/")[0] for file in files}
    for folder in folders:
        for top in sorted(folder.iterdir()) if folder.is_dir() else ():
            if top in listed or top.name.endswith((".dist-info", ".libs", "__pycache__")):
                continue
            if SHARED_OBJECT.search(top.name):
                found = [top]
            elif top.name in tops or top.is_symlink() or not _is_package(top):
                continue
            else:
                found = sorted(_shared_objects(top))
            if found:
                compiled = tuple(compiled_file(path, str(path.relative_to(folder))) for path in found)
                yield InstalledPackage("", "", folder, compiled)


def _shared_objects(top: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(top):
        folders[:] = [name for name in folders if name != "__pycache__"]
        yield from (Path(folder, name) for name in names if ".so" in name and SHARED_OBJECT.search(name))


def _is_package(folder: Path) -> bool:
    """Return whether a folder of PYTHONPATH or of packages is one of Python: others may hold data without an end."""
    return folder.suffix == ".egg" or (folder / "__init__.py").is_file()


def compiled_file(path: Path, name: str) -> CompiledFile:
    """Return a shared object by its path, with the module and the Python that its name states."""
    base = path.name
    tag = re.search(r"\.cpython-(\d)(\d{1,3})[\w-]{0,99}\.so$", base)
    if SHARED_OBJECT.search(base) is None or re.search(r"\.so\.\d", base):
        return CompiledFile(path, name, "")
    return CompiledFile(path, name, base.partition(".")[0], f"{tag[1]}.{tag[2]}" if tag else "")


def site_of(program: Path, environ: Mapping[str, str], root: Path = Path("/")) -> PythonSite:
    """Return the environment of an interpreter, which may be that of a virtual environment or of an unpacked image.

    Raises MatrixError where its version or its folders can't be read from files.
    """
    machine_site = LinkSite.of(root, "x86-64", environ)
    real = (
        Path(os.path.realpath(program))
        if root == Path("/")
        else machine_site.inside("/" + str(program.relative_to(root)))
    )
    prefix, base, shared, minor = program.parent.parent, real.parent.parent, True, ""
    try:
        text = read_regular_text(prefix / "pyvenv.cfg")
    except UnreadableError:
        base = prefix = real.parent.parent if not _libraries(prefix) else prefix
    else:
        shared = bool(re.search(r"^include-system-site-packages\s*=\s*true", text, re.MULTILINE | re.IGNORECASE))
        version = re.search(r"^version(?:_info)?\s*=\s*(\d+\.\d+)", text, re.MULTILINE)
        minor = version[1] if version else ""
    named = re.search(r"python(\d\.\d+)$", real.name)
    minor = minor or (named[1] if named else "") or next(iter(_libraries(prefix)), "")
    if not minor:
        raise MatrixError(
            "no Python environment",
            where=str(program),
            expected="lib/pythonX.Y beside its bin",
            fix="name the python of an environment: DIR/bin/python",
        )
    prefixes = [prefix, *([base] if shared and base != prefix else [])]
    folders = [prefix / folder.format(minor) for prefix in prefixes for folder in PACKAGE_FOLDERS]
    if shared:
        home = environ.get("HOME", "")
        user = [Path(home, ".local", PACKAGE_FOLDERS[0].format(minor))] if home and root == Path("/") else []
        debian = [root / folder.format(minor) for folder in DEBIAN] if base == root / "usr" else []
        folders = [*user, *folders, *debian]
    paths = [Path(text) for text in environ.get("PYTHONPATH", "").split(os.pathsep) if text]
    kept = [folder for folder in dict.fromkeys([*paths, *folders]) if folder.is_dir()]
    return PythonSite(real, minor, tuple(kept), machine_site, environ)


def image_site(root: Path, variables: Mapping[str, str]) -> PythonSite:
    """Return the environment of an unpacked image. Raises MatrixError where it has no Python."""
    if not root.is_dir():
        raise MatrixError("no folder", where=str(root), fix="name the root of an unpacked image")
    site = LinkSite(root)
    for path in INTERPRETERS:
        if site.inside(f"/{path}").is_file():
            return site_of(root / path, variables, root)
    got = "none of " + ", ".join(INTERPRETERS)
    raise MatrixError("the image has no Python", where=str(root), got=got, fix="name its interpreter with --python")


def _libraries(prefix: Path) -> list[str]:
    """Return the minor versions that have a folder of the library, the newest first."""
    names = [folder.name.removeprefix("python") for folder in prefix.glob("lib/python3.*/")]
    return sorted((name for name in names if re.fullmatch(r"3\.\d+", name)), key=lambda name: -int(name[2:]))


def started(python: PythonSite, provided: Sequence[ProvidedLibrary] = ()) -> Process:
    """Return the process of an interpreter that has imported nothing; `provided` are libraries of the driver."""
    process = Process(python.site, provided)
    process.start(python.program)
    return process


def after_import(process: Process, python: PythonSite, row: PackageImport) -> tuple[Process, tuple[LinkProblem, ...]]:
    """Return a process after the import of a package, with what does not load; it has what was opened until then."""
    process, problems = process.copy(), list[LinkProblem]()
    failed = opened = False
    for step in _listed(row.step, python):
        if (
            (step.when == "failed" and not failed)
            or (step.when == "nothing" and opened)
            or any(_matches(pattern, python, process) for pattern in step.unless)
        ):
            continue
        files = list(_files(step, python, process))
        opened = False
        for path in files:
            result = process.open(path, visible=step.visible, name="" if "/" in str(path) else str(path))
            failed, opened = failed or bool(result), opened or not result
            problems += result if step.needed else ()
        if step.needed and not files:
            name = Path(step.files[-1]).name.partition("*")[0]
            problems.append(LinkProblem(ProblemKind.LIBRARY, name, Path(row.package)))
    return process, tuple(problems)


def _listed(steps: Iterable[OpenStep], python: PythonSite) -> Iterator[OpenStep]:
    """Yield the steps; one whose files a Python file lists becomes a step for each of its rows."""
    cuda = cuda_of(python).partition(".")[0]
    for step in steps:
        if not step.pattern:
            yield step
            continue
        for folder in python.folders:
            try:
                text = read_regular_text(folder / step.listed)
            except UnreadableError:
                continue
            for match in re.finditer(step.pattern, text):
                values = {**match.groupdict(), "cuda": cuda}
                yield replace(step, files=tuple(file.format_map(values) for file in step.files), pattern=None)
            break


def cuda_of(python: PythonSite) -> str:
    """Return the CUDA that torch was built for ("12.4"), "" for a build without, or without torch."""
    cuda = torch_cuda(*map(str, python.folders))
    return cuda if cuda and cuda != NONE else ""


def _files(step: OpenStep, python: PythonSite, process: Process) -> Iterator[Path]:
    """Yield the files that a step opens: those of the first pattern that has any."""
    for pattern in step.files:
        if files := _matches(pattern, python, process):
            yield from files if step.every else files[-1:]
            return


def _matches(pattern: str, python: PythonSite, process: Process) -> list[Path]:
    """Return the files of a pattern, sorted by name; stubs of libraries are none."""
    if pattern.startswith("cache:"):
        cache = process.site.cache
        names = sorted(name for name in cache if fnmatch(name, pattern.removeprefix("cache:")))
        return [process.site.inside(cache[name]) for name in names]
    if pattern.startswith("@site/"):
        paths = (_glob(folder, pattern.removeprefix("@site/")) for folder in python.folders)
        return next(filter(None, paths), [])
    if pattern.startswith("$"):
        variable, _, rest = pattern[1:].partition("/")
        folder = python.environ.get(variable, "")
        return _glob(process.site.inside(folder), rest) if folder else []
    if pattern.startswith("/"):
        top, _, rest = pattern.partition("/**/")
        return _glob(process.site.inside(top), f"**/{rest}")
    return [Path(pattern)] if any(path.is_file() for path in process.candidates(pattern, None)) else []


def _glob(folder: Path, pattern: str) -> list[Path]:
    return sorted((path for path in folder.glob(pattern) if "stub" not in str(path)), key=lambda path: path.name)
