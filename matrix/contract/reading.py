"""Read a surface or calls from a recorded version, a wheel, a folder or a revision of a clone.

A revision is read by its objects: nothing is checked out, and a bare clone is enough.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from matrix.contract import consuming, offering, recording
from matrix.contract.provider import TRANSFORMER_ENGINE, Provider
from matrix.contract.recording import MCORE, SUFFIX, TE
from matrix.contract.surface import Surface
from matrix.contract.usage import Calls
from matrix.errors import MatrixError
from matrix.kit.git import Repository
from matrix.provision import sources
from matrix.provision.sources import Contents, Source, SourceKind
from matrix.provision.trees import LAYOUTS, package_files

Select = Callable[[str], bool]
Facts = TypeVar("Facts", Surface, Calls)


def surface_of(text: str) -> Surface:
    """Return the surface of the TE that `text` names. Raises MatrixError when there is none."""
    if text.endswith(SUFFIX):
        return recording.read_surface(Path(text))
    source = recorded_or_source(text, TE)
    return recording.load_surface(text) if source is None else extract_surface(sources.inspect(source))


def surface_of_source(text: str, provider: Provider, version: str | None = None) -> Surface:
    """Return the surface of a wheel, a folder or PATH@REV of a provider. Raises MatrixError when there is none."""
    if provider.package in LAYOUTS:
        return extract_surface(sources.inspect(sources.parse(text, provider.package)), version, provider)
    path = sources.existing(sources.absolute(Path.cwd(), text), text)
    if path.suffix != ".whl":
        raise MatrixError(
            f"{provider.package} is read from wheels only", got=text, expected="FILE.whl", fix=provider.fix
        )
    return extract_surface(sources.inspect(Source(provider.package, SourceKind.WHEEL, str(path))), version, provider)


def calls_of(text: str) -> Calls:
    """Return the calls of the megatron-core that `text` names. Raises MatrixError when there are none."""
    if text.endswith(SUFFIX):
        return recording.read_calls(Path(text))
    source = recorded_or_source(text, MCORE)
    return recording.load_calls(text) if source is None else extract_calls(sources.inspect(source))


def recorded_or_source(text: str, package: str) -> Source | None:
    """Return None for a version or tag (which must be recorded), otherwise the source that `text` names."""
    is_tag = "/" not in text and "@" not in text and not Path(text).exists()
    source = None if is_tag else sources.parse(text, package)
    return None if source is None or source.kind is SourceKind.PYPI else source


def extract(
    package: str, contents: Contents, version: str | None = None, into: Provider = TRANSFORMER_ENGINE
) -> Surface | Calls:
    """Read the surface of a TE, or the calls of a Megatron into a provider.

    `version` replaces the one that the source declares.
    """
    return extract_surface(contents, version) if package == TE else extract_calls(contents, version, into)


def extract_surface(contents: Contents, version: str | None = None, provider: Provider = TRANSFORMER_ENGINE) -> Surface:
    """Read the surface of a provider's source. Raises MatrixError when it holds none of its Python."""
    files = _some(contents, provider.holds, provider.fix)
    origin = _origin(contents)
    return _parsed(contents, lambda: offering.read_offering(files, version or contents.version, origin, provider))


def extract_calls(contents: Contents, version: str | None = None, provider: Provider = TRANSFORMER_ENGINE) -> Calls:
    """Read the calls of a Megatron source into a provider. Raises MatrixError when it holds none of its Python."""
    files = _some(contents, consuming.is_part, "name a megatron-core wheel or a Megatron-LM clone")
    origin = _origin(contents)
    return _parsed(contents, lambda: consuming.read_calls(files, version or contents.version, origin, provider))


def files_of(contents: Contents, part: Select) -> Mapping[str, bytes]:
    """Return the files of a source that `part` selects by path, uncommitted changes of a folder included."""
    source = contents.source
    if source.kind is SourceKind.WHEEL:
        with zipfile.ZipFile(source.location) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist() if part(name)}
    if source.kind is SourceKind.TREE:
        root = Path(source.location)
        paths = {file.relative_to(root).as_posix(): file for file in package_files(root / source.layout.folder)}
        return {name: file.read_bytes() for name, file in paths.items() if part(name)}
    commit = contents.identity.split()[1]
    with Repository(source.location) as clone:
        blobs = clone.files(commit, source.layout.folder, part)
        return {path: clone.object(id)[1] for path, id in blobs.items()}


def _some(contents: Contents, part: Select, fix: str) -> Mapping[str, bytes]:
    files = files_of(contents, part)
    if not any(path.endswith(".py") for path in files):
        raise MatrixError(
            "the source has no Python files of the package", where=str(contents.source), fix=fix
        )  # fmt: skip
    return files


def _parsed(contents: Contents, read: Callable[[], Facts]) -> Facts:
    try:
        return read()
    except SyntaxError as error:
        raise MatrixError(
            "this interpreter can't parse a source file", where=str(contents.source), got=error,
            fix="use an interpreter as new as the package requires",
        ) from None  # fmt: skip


def _origin(contents: Contents) -> dict[str, str]:
    if contents.source.kind is SourceKind.GIT:
        commit = contents.identity.split()[1]
        revision = contents.source.revision
        return {"commit": commit} if commit.startswith(revision) else {"commit": commit, "tag": revision}
    if contents.source.kind is SourceKind.WHEEL:
        return {"wheel": Path(contents.source.location).name}
    return {"tree": contents.identity.split()[1]}
