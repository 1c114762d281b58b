"""A bundle: a folder with all that a machine without a network needs for a run. It is checked and joined on use.

    bundle.json     what it is for, and size and SHA-256 of each file
    start.py        starts megatrix there, with a Python that has nothing installed
    wheels/         distributions of this project, its tools, a base, and the releases that are laid over it
    sources/        bare clones of upstream repositories

Standard library only: start.py imports it from the project's wheel before anything is installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from matrix.ground.catalog.codec import MalformedError, decode_json, encode
from matrix.ground.errors import MatrixError
from matrix.prove.provision.indexes import NO_INDEX
from matrix.read.commands import python_module, run

MANIFEST: Final = "bundle.json"
LAYOUT: Final = 1  # of the folder and its manifest
HOST: Final = "host"  # as in matrix.ground.catalog.model, whose imports are not installed yet
LEFT_OUT: Final = "left-out.txt"  # names of packages that the base does without
BLOCK: Final = 1 << 20  # bytes that are read at a time
# Of pip and uv, where they keep files; everything else of theirs would choose other packages than the bundle's.
KEPT: Final = ("PIP_CACHE_DIR", "UV_CACHE_DIR", "UV_LINK_MODE", "UV_PYTHON_INSTALL_DIR")
ENVIRONMENT: Final = "environment"  # the folder into which start.py installs megatrix


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
    """

    version: str
    level: str
    python: str
    base: str
    machine: str
    select: str = ""
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
        return (self.level, self.python, self.base, self.machine, self.select)


def read(folder: Path) -> Bundle:
    """Return what the folder holds. Raises MatrixError where it is no bundle."""
    path = folder / MANIFEST
    try:
        bundle = decode_json(Bundle, path.read_bytes(), str(path))
    except FileNotFoundError:
        raise MatrixError(
            "not a bundle",
            where=str(folder),
            got=f"no {MANIFEST}",
            fix="name the folder that `megatrix bundle --out` wrote",
        ) from None
    except MalformedError as error:
        raise MatrixError(
            "this bundle can't be read",
            where=str(path),
            got=error.brief,
            fix=f"copy {MANIFEST} again, or make the bundle again",
        ) from None
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


def verified(folder: Path) -> Bundle:
    """Join what is split, check every file and return the bundle. Raises MatrixError that names the damaged files."""
    bundle = read(folder)
    if not bundle.files:
        raise MatrixError(
            "this bundle is not complete",
            where=str(folder),
            fix="run the same `megatrix bundle` again; it goes on where it was",
        )
    if bad := [*damaged_parts(folder, bundle)]:
        raise _damaged(folder, bad)
    join(folder, bundle)
    if bad := [f"{name}: {why}" for name, file in bundle.files.items() if (why := difference(folder / name, file))]:
        raise _damaged(folder, bad)
    return bundle


def _damaged(folder: Path, bad: Sequence[str]) -> MatrixError:
    fix = f"copy {'this file' if len(bad) == 1 else 'these files'} again from where the bundle was made"
    rest = [f"and {len(bad) - 5} more"] if len(bad) > 5 else []
    return MatrixError("this bundle is damaged", where=str(folder), got="; ".join([*bad[:5], *rest]), fix=fix)


def difference(path: Path, file: BundleFile) -> str:
    """Return in what a file differs from what it was: it is missing, has another size or content; "" if it does not."""
    if not path.is_file():
        return "missing"
    if (size := path.stat().st_size) != file.size:
        return f"{size:,} bytes, not {file.size:,}"
    return "" if digest(path) == file.sha256 else "another content"


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            total.update(block)
    return total.hexdigest()


def part_of(path: Path, index: int) -> Path:
    """Return the name of a part of a file: FILE.part-000."""
    return path.with_name(f"{path.name}.part-{index:03d}")


def split(folder: Path, bundle: Bundle, size: int) -> Bundle:
    """Split the files above `size` bytes into parts, and return the bundle; it takes the disk of one part.

    The last part is cut off first: FILE is always a beginning, and the parts are the rest. `join` accepts any state.
    """
    bundle = replace(bundle, split=size)
    for name, file in bundle.files.items():
        count = -(-file.size // size)
        if count < 2:
            continue
        path = folder / name
        bundle = replace(bundle, files={**bundle.files, name: replace(file, parts=("",) * count)})
        write(folder, bundle)
        for index in reversed(range(1, count)):
            _copy(path, index * size, part_of(path, index), 0)
            os.truncate(path, index * size)
        path.rename(part_of(path, 0))
        parts = tuple(digest(part_of(path, index)) for index in range(count))
        bundle = replace(bundle, files={**bundle.files, name: replace(file, parts=parts)})
    write(folder, bundle)
    return bundle


def join(folder: Path, bundle: Bundle) -> None:
    """Join the parts that are there, each of which is then removed; what `split` or `join` left half done, too."""
    for name, file in bundle.files.items():
        path = folder / name
        for index in range(len(file.parts)):
            part = part_of(path, index)
            if not part.is_file():
                continue
            if index == 0:
                part.rename(path)
            else:
                _copy(part, 0, path, index * bundle.split)
                part.unlink()


def _copy(source: Path, start: int, target: Path, offset: int) -> None:
    """Copy a file from a byte on, to an offset of another that ends with it."""
    with source.open("rb") as reading, target.open("r+b" if target.exists() else "w+b") as writing:
        reading.seek(start)
        writing.truncate(offset)
        writing.seek(offset)
        shutil.copyfileobj(reading, writing, BLOCK)


def damaged_parts(folder: Path, bundle: Bundle) -> Iterable[str]:
    """Yield the parts that are missing or differ, of the files that are not joined yet."""
    for name, file in bundle.files.items():
        path = folder / name
        if not file.parts or path.is_file():
            continue
        for index, expected in enumerate(file.parts):
            part = part_of(path, index)
            if not part.is_file():
                yield f"{name}: {part.name} is missing"
            elif digest(part) != expected:
                yield f"{part.relative_to(folder)}: another content"


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
        **{name: str(folder / path) for name, path in bundle.clones.items()},
    }


def check_machine(bundle: Bundle) -> None:
    """Raise MatrixError if this Python or this machine is not the one for which the bundle was made."""
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


def start(folder: Path, words: Sequence[str]) -> None:
    """Check the bundle, install megatrix from it, once, and become `megatrix WORDS`, by default `run`."""
    try:
        bundle = verified(folder)
        check_machine(bundle)
        environ = variables(folder, bundle, os.environ)
        megatrix = _installed(folder, bundle, environ)
    except MatrixError as error:
        sys.exit(f"start.py: {error}")
    words = [*(words or ["run"])]
    options = ["--bundle", str(folder)] if words[0] == "run" else []
    os.execve(megatrix, ["megatrix", *words, *options], environ)  # noqa: S606


def _installed(folder: Path, bundle: Bundle, environ: Mapping[str, str]) -> Path:
    """Return the megatrix of the bundle's own environment, which is made if it is missing or of another bundle."""
    home, wheels = folder / ENVIRONMENT, folder / "wheels"
    mark, identity = home / "complete", json.dumps(sorted(file.sha256 for file in bundle.files.values()))
    if not mark.is_file() or mark.read_text() != identity:
        shutil.rmtree(home, ignore_errors=True)
        visible = ["--system-site-packages"] if bundle.base == HOST else []
        pip = next(wheels.glob("pip-*.whl"))
        # Debian's Python is without ensurepip: pip runs from its wheel.
        _run(python_module(sys.executable, "venv", "--without-pip", *visible, str(home)), environ)
        options = ["--isolated", "--python", str(home / "bin" / "python"), "install", "--quiet", "--no-index"]
        options += ["--find-links", str(wheels), "megatrix[desk]", "pytest-xdist"]
        _run(python_module(sys.executable, "pip", *options, folder=pip), environ)
        mark.write_text(identity)
    return home / "bin" / "megatrix"


def _run(command: Sequence[str], environ: Mapping[str, str]) -> None:
    ended = run(command, environment=environ)
    if ended.code:
        raise MatrixError(
            "megatrix can't be installed from this bundle",
            where=str(command[0]),
            got=ended.complaint,
            fix="see what the command printed",
        )
