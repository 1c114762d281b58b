"""Read a project's source tree without running any of it: its layout, version, requirements and files."""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.regular_file import sha256
from matrix.ground.catalog.schema import toml_table
from matrix.ground.catalog.versions import is_version
from matrix.ground.errors import MatrixError

UNLIKELY = 2**16  # bytes of a file; the shortest that overflows the stack has 160,000
FILES = "files and folders, or links to them"
Read = Callable[[str], "str | None"]  # path in the tree -> text, None when the tree has no such file


@dataclass(frozen=True)
class Layout:
    """The paths of a project in its source tree, and its distributions on PyPI.

    `folder` is the package at the top of the tree; `versions` are the files that may state the version, newest
    convention first; `releases` are the distributions of one release on PyPI, those that may add nothing last, and
    `libraries` those of them with compiled files that no overlay can use. `build` are the files and folders from which
    setup.py builds the package with its extension, `submodules` a folder of further ones.
    """

    project: str
    folder: str
    versions: tuple[str, ...]
    releases: tuple[str, ...]
    build: tuple[str, ...] = ()
    submodules: str = ""
    libraries: tuple[str, ...] = ()

    def taken(self, *, compiled: bool = False) -> tuple[str, ...]:
        """Return the paths of all that an overlay takes from a tree."""
        if compiled and self.build:
            return self.build
        inside = f"{self.folder}/"
        return (self.folder, *(path for path in self.versions if not path.startswith(inside)), "pyproject.toml")


# The files with which setup.py of Transformer Engine builds; it reads the last two.
SETUP = ("setup.py", "pyproject.toml", "MANIFEST.in", "VERSION", "README.rst", "LICENSE")
LAYOUTS: Mapping[str, Layout] = {
    "megatron-core": Layout("Megatron-LM", "megatron", ("megatron/core/package_info.py",), ("megatron-core",)),
    # The first wheel has the name and version of TE and, from 1.10 on, all of its Python; before, the cu12 wheel has,
    # with a library of 0.3 GB (1.0 GB in 2.18). The extension that uses the library is an sdist.
    "transformer-engine": Layout(
        "TransformerEngine",
        "transformer_engine",
        ("build_tools/VERSION.txt", "VERSION"),
        ("transformer-engine", "transformer-engine-cu12"),
        ("transformer_engine", "build_tools", "3rdparty", *SETUP),
        "3rdparty",
        ("transformer-engine-cu12",),
    ),
}


def declared(layout: Layout, where: str, read: Read) -> str:
    """Return the version that a tree states. Raises MatrixError without one, or for another project."""
    for path in layout.versions:
        text = read(path)
        if text is not None:
            version = python_version(text) if path.endswith(".py") else text.partition("\n")[0].strip()
            return checked_version(version, f"{where}: {path}")
    raise MatrixError(
        f"this is no {layout.project}",
        where=where,
        got=f"no {' or '.join(layout.versions)}",
        expected=f"the top of a {layout.project} tree: the folder that holds {layout.folder}/",
        fix="for a bare clone, give a revision: CLONE@HEAD",
    )


def syntax_tree(source: str | bytes, path: str = "<source>") -> ast.Module:
    """Parse Python. Raises RecursionError where Python 3.10 would overflow the stack: a chain of 100,000 attributes."""
    if len(source) > UNLIKELY and sys.version_info < (3, 11):
        with suppress(SyntaxError, ValueError):  # which ast.parse reports, if it is one there
            compile(source, path, "exec", dont_inherit=True)
    return ast.parse(source, path)


def python_version(text: str) -> str:
    """Return `__version__`, or MAJOR.MINOR.PATCH with PRE_RELEASE, of a package_info.py; "" if it states neither."""
    constants: dict[str, object] = {}
    try:
        for node in syntax_tree(text).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                constants |= {target.id: node.value.value for target in node.targets if isinstance(target, ast.Name)}
        numbers = [constants.get(name) for name in ("MAJOR", "MINOR", "PATCH")]
        by_number = "" if None in numbers else ".".join(map(str, numbers)) + str(constants.get("PRE_RELEASE", ""))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # ValueError: a null, a number of 5,000 digits
        return ""
    version = constants.get("__version__")
    return version if isinstance(version, str) else by_number


def metadata(package: str, version: str, where: str, read: Read) -> str:
    """Return core metadata for a source tree; requirements only where pyproject.toml lists them.

    Trees whose setup.py computes them (Megatron-LM before 0.13, Transformer Engine) count as requiring nothing.
    """
    path = f"{where}: pyproject.toml"
    content = toml_table(read("pyproject.toml") or "", path)
    project = decode(dict[str, Any], content.get("project", {}), f"{path}.project")
    lines = ["Metadata-Version: 2.1", f"Name: {package}", f"Version: {version}"]
    if "requires-python" in project:
        lines.append(f"Requires-Python: {decode(str, project['requires-python'], f'{path}.project.requires-python')}")
    requirements = decode(tuple[str, ...], project.get("dependencies", ()), f"{path}.project.dependencies")
    lines += [f"Requires-Dist: {requirement}" for requirement in requirements]
    return "\n".join(lines) + "\n"


def checked_version(text: str, where: str) -> str:
    """Return `text` if it is a version by PEP 440, else raise MatrixError."""
    if is_version(text):
        return text
    raise MatrixError(
        "no version is stated", where=where, got=text or "nothing readable", expected="a version by PEP 440"
    )


def tree_hash(folder: Path) -> str:
    """Return the SHA-256 of a package's files: their paths and their contents."""
    total = hashlib.sha256()
    for file in package_files(folder):
        total.update(os.fsencode(file.relative_to(folder).as_posix()) + f"\0{sha256(file)}\n".encode())
    return total.hexdigest()


def package_files(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Yield the files of a package in order, links followed; without caches and dot files, which no import reads.

    `above` are the real paths of the folders that led to it. Raises MatrixError for a link to nothing or to a folder
    that contains it, and for a pipe, socket or device.
    """
    above = (*above, folder.resolve())
    folders = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        if path.is_dir():
            folders.append(path)
        elif path.is_file():
            yield path
        else:
            got = f"a link to {path.readlink()}" if path.is_symlink() else "a pipe, socket or device"
            raise MatrixError("not a file of a package", where=str(path), got=got, expected=FILES, fix="remove it")
    for path in folders:
        if path.resolve() in above:
            got = f"a link to {path.resolve()}"
            raise MatrixError(
                "a link to a folder that contains it", where=str(path), got=got, expected=FILES, fix="remove it"
            )
        yield from package_files(path, above)


def copy_files(files: Iterable[Path], root: Path, target: Path) -> None:
    """Copy files that are below `root` to the same paths below `target`."""
    for file in files:
        copy = target / file.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
