"""A bundle: a folder with all that a machine without a network needs for a run. It is checked and joined on use.

    bundle.json     what it is for, and size and SHA-256 of each file
    start.py        starts megatrix there, with a Python that has nothing installed
    wheels/         distributions of this project, its tools, a base, and the releases that are laid over it
    sources/        bare clones of upstream repositories
    compiled/       extensions of Transformer Engine, each in a folder with the name of its build

Standard library only: start.py imports it from the project's wheel before anything is installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import site
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Final

from matrix.ground.catalog.codec import MalformedError, decode_json, encode
from matrix.ground.catalog.folders import default_root
from matrix.ground.catalog.machine import COMPILED
from matrix.ground.catalog.regular_file import UnreadableError, read_regular, sha256
from matrix.ground.errors import MatrixError
from matrix.prove.provision.indexes import NO_INDEX
from matrix.prove.provision.project import locked, names_of, prune, remove
from matrix.prove.store.paths import write_whole
from matrix.read.commands import python_module, run
from matrix.read.machine import hardware

MANIFEST: Final = "bundle.json"
LAYOUT: Final = 1  # of the folder and its manifest
HOST: Final = "host"  # as in matrix.ground.catalog.model, whose imports are not installed yet
LEFT_OUT: Final = "left-out.txt"  # names of packages that the base does without
BLOCK: Final = 1 << 20  # bytes that are read at a time
# Of pip and uv, where they keep files; everything else of theirs would choose other packages than the bundle's.
KEPT: Final = ("PIP_CACHE_DIR", "UV_CACHE_DIR", "UV_LINK_MODE", "UV_PYTHON_INSTALL_DIR")
# All files of a bundle are in these folders, or have one of these names; all its clones are these.
FOLDERS: Final = ("wheels", "sources", "compiled")
TOPMOST: Final = ("start.py", LEFT_OUT)
SOURCES: Final = {
    "MEGATRIX_MEGATRON_LM": "sources/megatron-lm",
    "MEGATRIX_TRANSFORMER_ENGINE": "sources/transformer-engine",
}
LARGEST: Final = 2**40  # bytes of a file: 1 TiB
MOST_PARTS: Final = 10_000  # of a file
LOCK: Final = ".lock"  # suffix of the empty files that lock clones
COMPLETE: Final = "complete"  # in the environment of a bundle: the names of its files, written last
KEPT_BUNDLES: Final = 3  # environments of bundles, by last use: a run of another one may be going on
PROJECT: Final = "wheels/megatrix-"  # the start of the name of this project's wheel


@dataclass(frozen=True)
class BundleFile:
    """The size in bytes and the SHA-256 of a file; `parts` are the SHA-256 of its parts, () for a whole file."""

    size: int
    sha256: str
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bundle:
    """What a bundle is for, and its files by their path in it; without files, it is not complete yet.

    `python` is the minor that the machine must have, `machine` its architecture. `clones` maps variables of settings to
    folders. `split` is the size in bytes of all parts but the last. `missing` are releases without a wheel, and why.
    `sm` is the compute capability of the GPUs for which its libraries have code, "" for all. `added` are the bases and
    selections that it holds besides its own.
    """

    version: str
    level: str
    python: str
    base: str
    machine: str
    select: str = ""
    sm: str = ""
    added: tuple[tuple[str, str], ...] = ()
    layout: int = LAYOUT
    split: int = 0
    clones: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, BundleFile] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Return the bytes of its files."""
        return sum(file.size for file in self.files.values())

    @property
    def request(self) -> tuple[str, ...]:
        """Return what no two bundles in one folder may differ in."""
        return (self.base, self.select, *self.site)

    @property
    def site(self) -> tuple[str, ...]:
        """Return in what all that is added to a bundle must be as it is."""
        return (self.level, self.python, self.machine, self.sm and f"--sm {self.sm}")


def read(folder: Path) -> Bundle:
    """Return what the folder holds. Raises MatrixError where it is no bundle."""
    path = folder / MANIFEST
    try:
        if not path.exists():
            fix = "name the folder that `megatrix bundle --out` wrote"
            raise MatrixError("not a bundle", where=str(folder), got=f"no {MANIFEST}", fix=fix)
        bundle = decode_json(Bundle, read_regular(path), str(path))
        problem = next(_problems(bundle), "") if bundle.layout == LAYOUT else ""
    except MalformedError as error:
        problem = error.brief
    if problem:
        fix = f"copy {MANIFEST} again, or make the bundle again"
        raise MatrixError("this bundle can't be read", where=str(path), got=problem, fix=fix)
    if bundle.layout != LAYOUT:
        raise MatrixError(
            "a bundle of another version",
            where=str(path),
            got=bundle.layout,
            expected=LAYOUT,
            fix="make the bundle again, with the version that uses it",
        )
    return bundle


def write(folder: Path, bundle: Bundle) -> None:
    """Write what the folder holds, in one step."""
    part = folder / f"{MANIFEST}.new"
    part.write_text(json.dumps(encode(bundle), indent=1) + "\n", encoding="utf-8")
    part.replace(folder / MANIFEST)


def _problems(bundle: Bundle) -> Iterator[str]:
    """Yield what a manifest must not state: nothing of it becomes a path or a variable before."""
    if not (re.fullmatch(r"3\.\d{1,2}", bundle.python) and re.fullmatch(r"[\w.+-]{1,100}", bundle.base)):
        yield f"no Python or no base: {bundle.python[:100]!r}, {bundle.base[:100]!r}"
    if not re.fullmatch(r"(\d{1,2}\.\d)?", bundle.sm):
        yield f"no compute capability: {bundle.sm[:100]!r}"
    for variable, path in bundle.clones.items():
        if path != SOURCES.get(variable):
            yield f"no clone of a bundle: {variable[:100]}"
    for name, file in bundle.files.items():
        top, *inner = name.split("/")
        if not name.isprintable() or not ((inner and top in FOLDERS) or name in TOPMOST) or {"", ".", ".."} & {*inner}:
            yield f"no file of a bundle: {name[:100]!r}"
        count = -(-file.size // bundle.split) if bundle.split > 0 else 0
        if not 0 <= file.size <= LARGEST or (file.parts and not 2 <= count == len(file.parts) <= MOST_PARTS):
            yield f"no size of a file, or of its parts: {name[:100]!r}"


def verified(folder: Path) -> Bundle:
    """Check every file, then join what is split, and return the bundle.

    Raises MatrixError that names the damaged files, and those that are not of the bundle: pip and uv would take them.
    """
    bundle = read(folder)
    if not bundle.files:
        raise MatrixError(
            "this bundle is not complete",
            where=str(folder),
            fix="run the same `megatrix bundle` again; it goes on where it was",
        )
    if foreign := [*_foreign(folder, bundle)]:
        got, fix = _shown(foreign), "remove them, or copy the bundle again"
        raise MatrixError("this folder has what is not of the bundle", where=str(folder), got=got, fix=fix)
    differing = ((name, difference(folder / name, file, bundle.split)) for name, file in bundle.files.items())
    if bad := [f"{name}: {why}" for name, why in differing if why]:
        fix = f"copy {'this file' if len(bad) == 1 else 'these files'} again from where the bundle was made"
        raise MatrixError("this bundle is damaged", where=str(folder), got=_shown(bad), fix=fix)
    join(folder, bundle)
    return bundle


def _shown(problems: Sequence[str]) -> str:
    return "; ".join([*problems[:5], *([f"and {len(problems) - 5} more"] if len(problems) > 5 else [])])


def _foreign(folder: Path, bundle: Bundle) -> Iterator[str]:
    """Yield the links, and the files that the bundle does not list, where pip, uv, git and Python read files."""
    listed = {str(path) for name in bundle.files for path in (folder / name, (folder / name).parent)}
    listed |= {str(part_of(folder / name, i)) for name, file in bundle.files.items() for i in range(len(file.parts))}
    inner = (Path(top, name) for tree in FOLDERS for top, *two in os.walk(folder / tree) for name in chain(*two))
    for path in chain((folder / name for name in (*FOLDERS, *TOPMOST)), inner):
        name = path.relative_to(folder)
        if path.is_symlink():
            yield f"{name}: a link"
        elif name.parts[0] == "sources" and (path.is_dir() or path.suffix == LOCK):
            continue
        elif path.parent != folder and str(path) not in listed:
            yield f"{name}: not in {MANIFEST}"


@dataclass(frozen=True)
class Piece:
    """The bytes of a file from `start` to `end`, and where they are: in it, or in the part of this index."""

    path: Path
    start: int
    end: int
    index: int = -1


def pieces(path: Path, file: BundleFile, split: int) -> list[Piece] | str:
    """Return where the bytes of a file are, of which `split` or `join` may have been interrupted; or what is missing.

    FILE is a beginning, and the parts are the rest: what it holds of a part counts.
    """
    held, found = _size(path), list[Piece]()
    for index in range(len(file.parts) or 1):
        start, end = index * split, min((index + 1) * split, file.size) if file.parts else file.size
        part = part_of(path, index)
        if held >= end:
            found.append(Piece(path, start, end))
        elif file.parts and _size(part) == end - start:
            found.append(Piece(part, start, end, index))
        elif file.parts and _size(part) < 0:
            return f"{part.name} is missing"
        else:
            held = _size(part) if file.parts else held
            return f"{held:,} bytes, not {end - start:,}" if held >= 0 else "missing"
    return found if held <= file.size else f"{held:,} bytes, not {file.size:,}"


def _size(path: Path) -> int:
    """Return the bytes of a regular file, -1 for anything else."""
    try:
        status = path.lstat()
    except OSError:
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def difference(path: Path, file: BundleFile, split: int) -> str:
    """Return in what a file, or what its parts make, differs from what it was; "" if it does not."""
    found = pieces(path, file, split)
    if isinstance(found, str):
        return found
    if found[-1].index > 0 and found[0].path.lstat().st_nlink > 1:
        return f"{found[0].path.name} is a hard link"  # `join` would append to all that share it
    whole, damaged = hashlib.sha256(), ""
    for piece in found:
        part = hashlib.sha256()
        with piece.path.open("rb") as reading:
            reading.seek(0 if piece.index >= 0 else piece.start)
            left = piece.end - piece.start
            while block := reading.read(min(BLOCK, left)):
                left -= len(block)
                whole.update(block)
                part.update(block)
        if piece.index >= 0 and part.hexdigest() != file.parts[piece.index]:
            damaged = damaged or f"{piece.path.name}: another content"
    return "" if whole.hexdigest() == file.sha256 else damaged or "another content"


def part_of(path: Path, index: int) -> Path:
    """Return the name of a part of a file: FILE.part-000."""
    return path.with_name(f"{path.name}.part-{index:03d}")


def split(folder: Path, bundle: Bundle, size: int) -> Bundle:
    """Split the files above `size` bytes into parts, and return the bundle; it takes the disk of one part.

    start.py and this project's wheel, which joins the others, stay whole.
    The last part is cut off first: FILE is always a beginning, and the parts are the rest. `join` accepts any state.
    """
    bundle = replace(bundle, split=size, files={name: replace(file, parts=()) for name, file in bundle.files.items()})
    for name, file in bundle.files.items():
        count = -(-file.size // size)
        if count < 2 or name in TOPMOST or name.startswith(PROJECT):
            continue
        path = folder / name
        bundle = replace(bundle, files={**bundle.files, name: replace(file, parts=("",) * count)})
        write(folder, bundle)
        for index in reversed(range(1, count)):
            _copy(path, index * size, part_of(path, index), 0)
            os.truncate(path, index * size)
        path.rename(part_of(path, 0))
        parts = tuple(sha256(part_of(path, index)) for index in range(count))
        bundle = replace(bundle, files={**bundle.files, name: replace(file, parts=parts)})
    write(folder, bundle)
    return bundle


def join(folder: Path, bundle: Bundle) -> None:
    """Join the parts that are there, each of which is then removed; what `split` or `join` left half done, too.

    A file of which a piece is missing stays as it is.
    """
    for name, file in bundle.files.items():
        path, found = folder / name, pieces(folder / name, file, bundle.split)
        for piece in found if file.parts and not isinstance(found, str) else ():
            if piece.index == 0:
                piece.path.rename(path)
            elif piece.index > 0:
                _copy(piece.path, 0, path, piece.start)
                piece.path.unlink()
        for index in range(0 if isinstance(found, str) else len(file.parts)):
            part_of(path, index).unlink(missing_ok=True)  # FILE holds it


def _copy(source: Path, start: int, target: Path, offset: int) -> None:
    """Copy a file from a byte on, to an offset of another that ends with it."""
    with source.open("rb") as reading, target.open("r+b" if target.exists() else "w+b") as writing:
        reading.seek(start)
        writing.truncate(offset)
        writing.seek(offset)
        shutil.copyfileobj(reading, writing, BLOCK)


def variables(folder: Path, bundle: Bundle, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a run from a bundle: pip and uv take its wheels, and no setting or index of this machine.

    Raises MatrixError for a path that uv can't be given.
    """
    if any(character.isspace() or character == "," for character in str(folder)):
        raise MatrixError(
            "uv can't read a bundle here", where=str(folder), fix="move the bundle to a path without spaces and commas"
        )
    wheels = str(folder / "wheels")
    passed = {name: value for name, value in environ.items() if name in KEPT or not name.startswith(("PIP_", "UV_"))}
    passed.pop("UV", None)
    uv = Path(sys.prefix, "bin", "uv")
    return {
        **passed,
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": wheels,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "UV_NO_CONFIG": "1",
        "UV_OFFLINE": "1",
        "UV_DEFAULT_INDEX": NO_INDEX,
        "UV_FIND_LINKS": wheels,
        "UV_PYTHON_DOWNLOADS": "never",
        "MEGATRIX_PYTHON": bundle.python,
        "UV_EXCLUDE": str(folder / LEFT_OUT) if LEFT_OUT in bundle.files else "",
        **({"UV": str(uv)} if uv.is_file() else {}),
        **({COMPILED: str(folder / FOLDERS[2])} if any(name.startswith(FOLDERS[2]) for name in bundle.files) else {}),
        **{name: str(folder / path) for name, path in bundle.clones.items()},
    }


def check_machine(bundle: Bundle) -> None:
    """Raise MatrixError if this Python, this machine or its GPU is not the one for which the bundle was made."""
    minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if minor != bundle.python:
        raise MatrixError(
            "a bundle for another Python",
            got=minor,
            expected=bundle.python,
            fix=f"start it with python{bundle.python}, or make a bundle with --python {minor}",
        )
    if platform.machine() != bundle.machine:
        raise MatrixError(
            "a bundle for another machine",
            got=platform.machine(),
            expected=bundle.machine,
            fix="make the bundle on a machine of the same architecture",
        )
    found = [gpu.sm for gpu in hardware.query(("cuda",)).cuda.gpus or () if gpu.sm] if bundle.sm else []
    if found and bundle.sm not in found:
        raise MatrixError(
            "a bundle for another GPU",
            got=f"compute capability {', '.join(sorted({*found}))}",
            expected=bundle.sm,
            fix=f"make a bundle with --sm {found[0].replace('.', '')}, or without --sm for all GPUs",
        )


def start(folder: Path, words: Sequence[str]) -> None:
    """Check the bundle, install megatrix from it, once, and become `megatrix WORDS`, by default `run`."""
    try:
        bundle = verified(folder)
        check_machine(bundle)
        environ = variables(folder, bundle, os.environ)
        environ["MEGATRIX_COMMAND"] = f"python{bundle.python} {folder}/start.py"
        megatrix = _installed(folder, bundle, environ)
    except MatrixError as error:
        sys.exit(f"start.py: {error}")
    words = [*(words or ["run"])]
    options = ["--bundle", str(folder)] if words[0] == "run" else []
    os.execve(megatrix, ["megatrix", *words, *options], environ)  # noqa: S606


def _installed(folder: Path, bundle: Bundle, environ: Mapping[str, str]) -> Path:
    """Return the megatrix of the bundle's own environment, which is made in the cache if it is missing there."""
    wheels, made_of = folder / "wheels", (sys.executable, *sorted(file.sha256 for file in bundle.files.values()))
    home = default_root(environ) / "bundles" / hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]
    if not _complete(home):
        with locked(home.with_name(f"{home.name}.lock")):
            if not _complete(home):
                _install(home, wheels, bundle, environ)
    with suppress(OSError):  # a read-only cache
        os.utime(home)  # the time of its last use
    return home / "bin" / "megatrix"


def _complete(home: Path) -> bool:
    """Return whether an environment has all files that it was made with: a purge of old files takes some."""
    try:
        return not {*read_regular(home / COMPLETE).decode().splitlines()}.difference(names_of(home))
    except (UnreadableError, UnicodeDecodeError):
        return False


def _install(home: Path, wheels: Path, bundle: Bundle, environ: Mapping[str, str]) -> None:
    """Make the environment of a bundle; the caller holds its lock. The least recently used others are removed."""
    remove(home)
    prune(home.parent, (path for path in home.parent.iterdir() if path.is_dir() and path != home), KEPT_BUNDLES - 1)
    make_environment(home, environ, visible=bundle.base == HOST)
    pip = next(wheels.glob("pip-*.whl"))  # Debian's Python is without ensurepip: pip runs from its wheel
    options = ["--isolated", "--python", str(home / "bin" / "python"), "install", "--quiet", "--no-index"]
    options += ["--find-links", str(wheels), "megatrix[desk]", "pytest-xdist"]
    _run(python_module(sys.executable, "pip", *options, folder=pip), environ)
    write_whole(home / COMPLETE, "\n".join(names_of(home)))


def make_environment(home: Path, environ: Mapping[str, str], *, visible: bool) -> None:
    """Make an environment without pip; `visible`: it has the packages of this Python, too."""
    nested = sys.prefix != sys.base_prefix
    system = ["--system-site-packages"] if visible and not nested else []
    _run(python_module(sys.executable, "venv", "--without-pip", *system, str(home)), environ)
    if visible and nested:
        # The option would show what the Python has that made this virtual environment. addsitedir reads the folders'
        # own .pth files, too: those of editable installations, and of an environment that was made here.
        folders = site.getsitepackages() + ([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])
        (packages,) = home.glob("lib/python*/site-packages")
        text = "".join(f"import site; site.addsitedir({folder!r})\n" for folder in folders)
        (packages / "host.pth").write_text(text, encoding="utf-8")


def _run(command: Sequence[str], environ: Mapping[str, str]) -> None:
    ended = run(command, environment=environ)
    if ended.code:
        raise MatrixError(
            "megatrix can't be installed from this bundle",
            where=str(command[0]),
            got=ended.complaint,
            fix="see what the command printed",
        )
