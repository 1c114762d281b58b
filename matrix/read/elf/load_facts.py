"""The tables of what imports open and of what mends a package that does not load: catalog/facts/linking.toml."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

from packaging.specifiers import SpecifierSet

from matrix.ground.catalog import versions
from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.distributions import FOLDER
from matrix.ground.catalog.schema import Pattern, read_toml

TABLE: Final = FOLDER / "linking.toml"


@dataclass(frozen=True)
class OpenStep:
    """Files that an import opens; linking.toml explains the keys."""

    files: tuple[str, ...]
    every: bool = False
    visible: bool = False
    needed: bool = False
    when: str = ""
    unless: tuple[str, ...] = ()
    listed: str = ""
    pattern: Pattern | None = None


@dataclass(frozen=True)
class PackageImport:
    """What the import of a package opens; the extensions that it opens itself; the libraries that show its import."""

    package: str
    step: tuple[OpenStep, ...]
    source: str
    releases: str = ""
    after: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    own: tuple[str, ...] = ()

    def fits(self, version: str) -> bool:
        """Return whether the row is for a release."""
        return contains(self.releases, version)


@dataclass(frozen=True)
class CompiledPackage:
    """A package of Megatron's stack, the extensions that it must have, what happens without, and the mending line."""

    package: str
    modules: tuple[str, ...]
    lacks: str
    install: str
    source: str
    releases: str = ""


@dataclass(frozen=True)
class OptionalFiles:
    """Extensions whose failure to load nothing needs."""

    package: str
    files: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class SameRelease:
    """Packages that must be of one release."""

    packages: tuple[str, ...]
    lacks: str
    install: str
    source: str


@dataclass(frozen=True)
class ProvidedLibrary:
    """A library that the driver provides, and the symbols that it defines."""

    library: Pattern
    symbols: Pattern
    by: str
    source: str


@dataclass(frozen=True)
class FixCommand:
    """A line for a shell that mends what does not load; linking.toml explains the keys."""

    install: str
    source: str
    package: Pattern | None = None
    problem: str = ""
    name: Pattern | None = None
    releases: str = ""
    major: str = ""
    differs: bool = False


@dataclass(frozen=True)
class CheckedInterface:
    """A library whose release a package compares with the one of its build."""

    library: str
    declared: str
    by: str
    rule: str
    lacks: str
    install: str
    source: str


@dataclass(frozen=True)
class LinkTable:
    """All tables of linking.toml."""

    importing: tuple[PackageImport, ...]
    compiled: tuple[CompiledPackage, ...]
    optional: tuple[OptionalFiles, ...]
    same: tuple[SameRelease, ...]
    provided: tuple[ProvidedLibrary, ...]
    mend: tuple[FixCommand, ...]
    interface: tuple[CheckedInterface, ...]


def contains(releases: str, version: str) -> bool:
    """Return whether a range has a version; "" has all."""
    return not releases or (versions.is_version(version) and SpecifierSet(releases).contains(version, prereleases=True))


@cache
def link_table() -> LinkTable:
    """Return the tables. Raises MatrixError where they are damaged."""
    return decode(LinkTable, read_toml(TABLE), str(TABLE))
