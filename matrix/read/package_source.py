"""Sources of a package under test: a PyPI release, a wheel file, a git revision of a clone, a working tree.

A `Source` is parsed from text; `inspect` returns its `Contents` without running any of its code; `unpack` writes the
package of a git revision or working tree into a folder, in the form of an installed package. A clone is only read: no
checkout, no fetch, its index untouched; bare clones and linked work trees suffice.
"""

from __future__ import annotations

import lzma
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from email.parser import HeaderParser
from enum import Enum
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

from matrix.ground.catalog.regular_file import open_regular, read_regular_text, sha256, within_limits
from matrix.ground.catalog.versions import is_version
from matrix.ground.errors import MatrixError, closest
from matrix.read.git import MOST, Repository
from matrix.read.trees import (
    LAYOUTS,
    Layout,
    checked_version,
    copy_files,
    declared,
    metadata,
    package_files,
    tree_hash,
)

UNREADABLE_WHEEL = "the wheel can't be read"
LARGEST_CONTENT = 2**29  # bytes of the files that are read of a wheel; the Python of torch 2.9 has 60 MB
TREE_S = 30.0  # seconds of CPU time in which a working tree is hashed; megatron-core takes 0.1
LARGEST_HEAD = 2**20  # characters of the headers of METADATA; those of torch have 20,000
# What zipfile raises: RuntimeError for an encrypted member, NotImplementedError for an unknown compression.
DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError),
    *(RuntimeError, NotImplementedError, ValueError, struct.error),
)
FORMS = "a release (0.9.0), a wheel (path.whl), a revision of a clone (./Megatron-LM@REV) or a folder (./Megatron-LM)"


class SourceKind(str, Enum):
    """The kind of a source."""

    PYPI = "pypi"
    WHEEL = "wheel"
    GIT = "git"
    TREE = "tree"


@dataclass(frozen=True)
class Source:
    """A source as given. `location` is an absolute path ("" for PyPI); `revision` a version or a git revision."""

    package: str
    kind: SourceKind
    location: str = ""
    revision: str = ""

    def __str__(self) -> str:
        """Return the text that `parse` reads back."""
        return "@".join(part for part in (self.location, self.revision) if part)

    @property
    def layout(self) -> Layout:
        """Return the layout of this package; for one that is not under test it has the name on PyPI only."""
        return LAYOUTS.get(self.package) or Layout(self.package, "", (), (self.package,))


@dataclass(frozen=True)
class Contents:
    """The current contents of a source.

    The same `identity` is the same package: "pypi megatron-core==0.9.0", "wheel SHA256", "git COMMIT TREE" (the tree
    of the package's folder), "tree SHA256". `version` is what the source declares; a git revision or working tree
    adds its commit or content hash as local version, in upstream's own style (1.8.0+37280ec); the tag of a release has
    the version of that release. `metadata` is the core metadata of an installed package, for sources that have none (""
    for the others).
    """

    source: Source
    identity: str
    version: str
    metadata: str = ""


def parse(text: str, package: str, *, folder: Path | None = None) -> Source:
    """Return the source that a text gives for `package` ("megatron-core", "transformer-engine").

    Paths start at `folder`, by default the current one. A version means PyPI, even where a folder has that name (write
    ./0.9.0). Raises MatrixError for a text in none of FORMS and for a missing path.
    """
    if package not in LAYOUTS:
        raise MatrixError("no such package under test", got=package, expected=closest(package, LAYOUTS))
    folder = folder or Path.cwd()
    if is_version(text):
        return Source(package, SourceKind.PYPI, revision=text)
    path = absolute(folder, text)
    if path.suffix == ".whl":
        if existing(path, text).is_file():
            return Source(package, SourceKind.WHEEL, str(path))
        raise MatrixError("not a wheel", where=str(path), got="a folder, pipe or device", expected="a file")
    if text and path.is_dir():
        return Source(package, SourceKind.TREE, str(path))
    # A folder name and a revision may contain @, too: the first split whose left side is a folder counts.
    for at in re.finditer("@", text):
        clone = absolute(folder, text[: at.start()])
        if at.start() and clone.is_dir():
            return Source(package, SourceKind.GIT, str(clone), text[at.end() :])
    path = existing(absolute(folder, text.partition("@")[0] or text), text)
    raise MatrixError("no such source", where=str(path), got="a file, pipe or device", expected=FORMS)


def pinned(text: str) -> Source:
    """Return the PyPI source of "NAME==VERSION", for a package that is not under test."""
    name, _, version = text.partition("==")
    return Source(name, SourceKind.PYPI, revision=version)


def inspect(source: Source) -> Contents:
    """Return the current contents of a source. Reads files and runs git; a release on PyPI is not checked.

    Raises MatrixError when the revision is missing, the folder or wheel belongs to another project, or the wheel is
    damaged.
    """
    if source.kind is SourceKind.PYPI:
        return Contents(source, f"pypi {source.package}=={source.revision}", source.revision)
    inspectors = {SourceKind.WHEEL: inspect_wheel, SourceKind.GIT: inspect_revision, SourceKind.TREE: inspect_tree}
    return inspectors[source.kind](source)


def inspect_wheel(source: Source) -> Contents:
    """Return a wheel's content hash and the version in its metadata."""
    path = Path(source.location)
    files = members(path, lambda name: re.fullmatch(r"[^/]+\.dist-info/METADATA", name) is not None)
    text = next(iter(files.values()), b"").decode("utf-8", "replace").replace("\r\n", "\n")
    head = text.partition("\n\n")[0]  # the description follows
    if len(head) > LARGEST_HEAD:
        got, expected = f"{len(head):,} characters of headers", f"at most {LARGEST_HEAD:,}"
        raise MatrixError("the metadata of this wheel is too large", where=str(path), got=got, expected=expected)
    headers = HeaderParser().parsestr(head)
    digest = sha256(path)
    name = headers.get("Name", "a file without package metadata")
    if canonicalize_name(name) not in source.layout.releases:
        raise MatrixError(
            f"this wheel is not of {source.package}",
            where=str(path),
            got=name,
            expected=" or ".join(source.layout.releases),
        )
    return Contents(source, f"wheel {digest}", checked_version(headers.get("Version", ""), str(path)))


def members(path: Path, part: Callable[[str], bool]) -> dict[str, bytes]:
    """Return the files of a wheel that `part` selects, by name; nothing is unpacked to the disk.

    Raises MatrixError for a file that is no wheel, damaged, encrypted or compressed in a way that Python can't read,
    and for more than MOST files or LARGEST_CONTENT bytes of them.
    """
    fix = "download or build it again; it may be truncated"
    contents = {}
    try:
        with open_regular(path, what=UNREADABLE_WHEEL, fix=fix) as file, zipfile.ZipFile(file) as wheel:
            selected = [member for member in wheel.infolist() if part(member.filename)]
            size = sum(member.file_size for member in selected)
            if len(selected) > MOST or size > LARGEST_CONTENT:
                raise MatrixError(
                    UNREADABLE_WHEEL,
                    where=str(path),
                    got=f"{len(selected):,} files of {size:,} bytes",
                    expected=f"at most {MOST:,} files of {LARGEST_CONTENT:,} bytes",
                )
            for member in selected:
                with wheel.open(member) as packed:  # reads no more than the size that was counted
                    contents[member.filename] = packed.read(member.file_size)
                    packed.read(1)  # checks the checksum
    except (*DAMAGED, UnicodeDecodeError) as error:
        raise MatrixError(UNREADABLE_WHEEL, where=str(path), got=error, fix=fix) from None
    return contents


def inspect_revision(source: Source) -> Contents:
    """Return a revision's commit, the tree of its package's folder, and the version that it declares."""
    with Repository(source.location) as clone:
        commit = clone.commit(source.revision)
        if not commit:
            raise MatrixError(
                "no such revision in this clone",
                where=source.location,
                got=source.revision or "nothing after the @",
                expected=closest(source.revision, clone.refs()),
                fix="git fetch it into the clone first; a clone under test is only read",
            )
        text_of = clone.text(commit)
        version = declared(source.layout, str(source), text_of)
        if not is_release_tag(source.revision, version):
            version += f"+{commit[:7]}"
        tree, _ = clone.object(f"{commit}:{source.layout.folder}")
        return Contents(
            source, f"git {commit} {tree}", version, metadata(source.package, version, str(source), text_of)
        )


def is_release_tag(revision: str, version: str) -> bool:
    """Return whether the revision is the tag of the release that it declares: v1.8, core_v0.9.0."""
    tag = re.fullmatch(r"(?:core_)?v(\d.*)", revision)
    return tag is not None and is_version(tag[1]) and Version(tag[1]) == Version(version)


def inspect_tree(source: Source) -> Contents:
    """Return the hash of a working tree's package, uncommitted changes included, and the version it declares."""
    root = Path(source.location)

    def text_of(path: str) -> str | None:
        file = root / path
        return read_regular_text(file) if file.exists() else None

    with within_limits(source.location, TREE_S):  # links may name one folder a million times, a file may have 1 TiB
        digest = tree_hash(root / source.layout.folder)
    version = f"{declared(source.layout, str(source), text_of)}+tree.{digest[:7]}"
    return Contents(source, f"tree {digest}", version, metadata(source.package, version, str(source), text_of))


def unpack(contents: Contents, folder: Path) -> None:
    """Write the package of a git revision or a working tree into `folder`, with metadata as if it were installed.

    Raises MatrixError when a working tree changes meanwhile: the code that ran would differ from the record.
    """
    source = contents.source
    package = source.layout.folder
    if source.kind is SourceKind.GIT:
        _, commit, _ = contents.identity.split()
        with Repository(source.location) as clone:
            clone.write(commit, package, folder)
    else:
        root = Path(source.location)
        copy_files(package_files(root / package), root, folder)
        if f"tree {tree_hash(folder / package)}" != contents.identity:
            raise MatrixError("the working tree changed while it was copied", where=source.location, fix="run again")
    add_metadata(contents, folder)


def add_metadata(contents: Contents, folder: Path) -> None:
    """Add to the package of a git revision or a working tree in `folder` what an installed package has."""
    source = contents.source
    info = folder / f"{source.package.replace('-', '_')}-{contents.version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(contents.metadata, encoding="utf-8")
    files = [*package_files(folder / source.layout.folder), info / "METADATA", info / "RECORD"]
    (info / "RECORD").write_text("".join(f"{file.relative_to(folder)},,\n" for file in files), encoding="utf-8")


def absolute(folder: Path, text: str) -> Path:
    """Return the absolute path of a text, relative to `folder`, with ~ expanded."""
    return Path(os.path.normpath(folder / Path(text).expanduser()))


def existing(path: Path, text: str) -> Path:
    """Return `path` if it exists. Raises MatrixError that suggests similar names."""
    if text and path.exists():
        return path
    folder = path.parent
    near = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    fetch = f"of a package name a wheel: python -m pip download --no-deps {path.name}"
    raise MatrixError(
        "no such source",
        got=text or "nothing",
        expected=FORMS,
        fix=closest(path.name, near, otherwise=fetch) if near else f"there is no folder {folder}",
    )
