"""Read any Python project as a consuming package: a folder, a revision of a clone or a wheel. Nothing is run."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from matrix.contract import consuming
from matrix.contract.provider import Provider
from matrix.contract.usage import Calls
from matrix.errors import MatrixError
from matrix.kit.git import Repository
from matrix.provision.sources import absolute, existing

# Not part of the product: virtual environments, builds, dependencies of a checkout.
LEFT_OUT: Final = {"build", "dist", "node_modules", "site-packages", "venv"}


def calls_of_project(text: str, provider: Provider) -> Calls:
    """Return the calls of a project into a provider; its own copy of the provider is left out.

    Raises MatrixError when there is no such project, when it does not mention the provider, or on a broken file.
    """
    name, files = _files(text)
    own = {path: content for path, content in files.items() if not provider.files.fullmatch(path.removeprefix("src/"))}
    if not any(provider.mention in content for content in own.values()):
        raise MatrixError(
            f"nothing in this project uses {provider.package}", where=text, got=f"{len(own)} Python files",
            expected=f"a file that contains {provider.top!r}",
        )  # fmt: skip
    try:
        return consuming.read_calls(own, name, provider=provider, consumer=name, part=lambda path: True)
    except SyntaxError as error:
        raise MatrixError(
            "this interpreter can't parse a source file", where=f"{text}: {error.filename}:{error.lineno}",
            got=error.msg,
            fix="use an interpreter as new as the project requires",
        ) from None  # fmt: skip


def _files(text: str) -> tuple[str, Mapping[str, bytes]]:
    """Return the name of a project and its Python files."""
    folder, at, revision = text.rpartition("@")
    if at and Path(folder).expanduser().is_dir() and not Path(text).exists():
        path = absolute(Path.cwd(), folder)
        with Repository(path) as clone:
            commit = clone.commit(revision)
            if not commit:
                raise MatrixError("no such revision in this clone", where=str(path), got=revision)
            blobs = clone.files(commit, "", _is_product)
            return f"{path.name}@{revision}", {name: clone.object(id)[1] for name, id in blobs.items()}
    path = existing(absolute(Path.cwd(), text), text)
    if path.suffix == ".whl":
        try:
            with zipfile.ZipFile(path) as wheel:
                return path.stem, {name: wheel.read(name) for name in wheel.namelist() if _is_product(name)}
        except (zipfile.BadZipFile, OSError) as error:
            raise MatrixError("the wheel can't be read", where=str(path), got=error) from None
    if not path.is_dir():
        raise MatrixError("not a project", where=str(path), got="a file", expected="a folder, PATH@REV or a wheel")
    return path.name, {name: (path / name).read_bytes() for name in _walk(path)}


def _walk(root: Path) -> Iterator[str]:
    for folder, inner, files in os.walk(root):
        inner[:] = sorted(name for name in inner if name not in LEFT_OUT and not name.startswith("."))
        for name in sorted(files):
            path = (Path(folder) / name).relative_to(root).as_posix()
            if _is_product(path) and not (root / path).is_symlink():
                yield path


def _is_product(path: str) -> bool:
    parts = path.split("/")
    return path.endswith(".py") and not any(part in LEFT_OUT or part.startswith(".") for part in parts[:-1])
