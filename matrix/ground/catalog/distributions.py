"""What the package index has of the packages that `megatrix fit` chooses, and how extensions are built.

Recorded in facts/distributions.toml (written by tests/package_facts.py) and facts/builds.toml (by hand, with sources).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.schema import VersionText, read_toml
from matrix.ground.catalog.versions import Range, minor, parse

FOLDER: Final = Path(__file__).parent / "facts"


@dataclass(frozen=True)
class Package:
    """A package of which releases are recorded; the keys are those that distributions.toml describes."""

    name: str
    oldest: str = ""
    newest: int = 0
    keep: tuple[str, ...] = ()
    framework: bool = False
    extras: tuple[str, ...] = ()


@dataclass(frozen=True)
class IndexedRelease:
    """The files of one release in the index, and what it declares; the keys are those of distributions.toml."""

    package: str
    version: VersionText
    wheel: bool = False
    sdist: bool = False
    pythons: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    requires_python: str = ""
    requires: tuple[str, ...] = ()

    def has_python(self, minor: str) -> bool:
        """Return whether it can be installed on a minor of Python, as its files and its metadata state."""
        allowed = SpecifierSet(self.requires_python).contains(f"{minor}.99" if minor else "", prereleases=True)
        return allowed and (not self.pythons or minor in self.pythons or self.sdist)

    def has_wheel(self, minor: str, machine: str) -> bool:
        """Return whether it has a wheel for a minor of Python on Linux with this architecture."""
        fits = not self.pythons or minor in self.pythons
        return self.wheel and fits and (not self.machines or machine in self.machines)

    def ranges(self, minor: str, extras: tuple[str, ...] = ()) -> Mapping[str, SpecifierSet]:
        """Return the ranges that it declares on Linux with a minor of Python, by canonical name."""
        declared: dict[str, SpecifierSet] = {}
        for requirement in map(Requirement, self.requires):
            environment = {"python_version": minor, "python_full_version": f"{minor}.0", "sys_platform": "linux"}
            environment |= {"platform_system": "Linux", "platform_machine": "x86_64"}
            marker = requirement.marker
            if marker is None or any(marker.evaluate({**environment, "extra": extra}) for extra in ("", *extras)):
                name = canonicalize_name(requirement.name)
                declared[name] = declared.get(name, SpecifierSet()) & requirement.specifier
        return declared


@dataclass(frozen=True)
class Distributions:
    """The recorded packages and releases."""

    package: tuple[Package, ...] = ()
    release: tuple[IndexedRelease, ...] = ()

    @cached_property
    def by_package(self) -> Mapping[str, Mapping[str, IndexedRelease]]:
        """The releases by package and version, oldest first."""
        table: dict[str, dict[str, IndexedRelease]] = {package.name: {} for package in self.package}
        for release in sorted(self.release, key=lambda each: parse(each.version)):
            table[release.package][release.version] = release
        return table

    def of(self, package: str, version: str) -> IndexedRelease | None:
        """Return a release, None for one that is not recorded."""
        return self.by_package.get(package, {}).get(version)


@dataclass(frozen=True)
class TorchCuda:
    """The CUDA of wheels of a minor of torch that the package index does not have, with their libraries."""

    torch: VersionText
    cuda: VersionText
    cudnn: str = ""
    nccl: str = ""


@dataclass(frozen=True)
class SourceBuild:
    """A package that the index has as source alone: what compiling it needs, and what it declares.

    `minutes` is how long that takes as a source states it, "" where none does.
    """

    package: str
    needs: str
    source: str
    minutes: str = ""
    requires: tuple[str, ...] = ()
    clone: str = ""


@dataclass(frozen=True)
class AttachedWheels:
    """Compiled wheels that releases attach to their tags; `cuda` is a major, `torch` are minors or releases."""

    package: str
    versions: Range
    pythons: tuple[str, ...]
    torch: tuple[VersionText, ...]
    cuda: str
    machines: tuple[str, ...]
    source: str

    def fits(self, version: str, python: str, torch: str, cuda: str) -> bool:
        """Return whether a release has a wheel for a Python minor, a torch and a CUDA."""
        torches = torch in self.torch or minor(torch) in self.torch
        return version in self.versions and python in self.pythons and torches and cuda.split(".")[0] == self.cuda


@dataclass(frozen=True)
class Builds:
    """How the packages of a stack are built."""

    torch_cuda: tuple[TorchCuda, ...] = ()
    source_build: tuple[SourceBuild, ...] = ()
    attached: tuple[AttachedWheels, ...] = ()


def read_builds(path: Path = FOLDER / "builds.toml") -> Builds:
    """Read how packages are built. Raises MatrixError."""
    return decode(Builds, read_toml(path), str(path))


def read_distributions(path: Path = FOLDER / "distributions.toml") -> Distributions:
    """Read the recorded releases. Raises MatrixError."""
    return decode(Distributions, read_toml(path), str(path))
