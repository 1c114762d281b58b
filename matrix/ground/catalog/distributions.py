"""What the package index has of the packages that `megatrix fit` chooses, and which extensions a base can build.

Recorded in facts/distributions.toml (written by tests/package_facts.py) and facts/builds.toml (by hand, with sources).
The index has the Python and the compiled library of a Transformer Engine as wheels, its torch extension as source alone
(facts/te_builds.toml).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.machine import Compiled, Toolkit
from matrix.ground.catalog.schema import Pattern, Size, VersionText, read_toml
from matrix.ground.catalog.versions import NONE, Range, minor, parse

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


# What a host gets where it lacks it. megatron-core >= 0.7 saves with psutil: without it, saves of 0.13 - 0.16 wait for
# ever. Megatron-LM's training imports six and regex up to 0.16, models einops from 0.9 on.
OF_HOST: Final = (("psutil", "7.2.2"), ("six", "1.17.0"), ("regex", "2024.11.6"), ("einops", "0.8.2"))
PYTHON: Final = "transformer-engine"  # the wheel with the name and version, and from 1.10 on with all of the Python
FILE: Final = FOLDER / "te_builds.toml"
NCCL_FILE: Final = FOLDER / "nccl.toml"


@dataclass(frozen=True)
class Extension:
    """The torch extension of the releases in `versions`; the keys are those that te_builds.toml describes."""

    package: str
    versions: Range
    cuda_sources: Range
    minutes: float
    cuda_minutes: float
    memory: Size
    disk: Size
    wheel: Size
    cudnn_parts: Range
    variables: Pattern
    tools: tuple[str, ...]


@dataclass(frozen=True)
class ExtensionRequirement:
    """A requirement of the extension of the releases in `versions`; `cuda` is the major version that a library is for.

    Without `cuda` it is one that the extension declares, of every CUDA.
    """

    package: str
    versions: Range
    cuda: str = ""


@dataclass(frozen=True)
class Unimportable:
    """Releases that fail to import with the torch versions in `torch`."""

    versions: Range
    torch: Range
    reason: str


@dataclass(frozen=True)
class TeBuilds:
    """The compiled parts of the releases."""

    extension: Extension
    library: tuple[ExtensionRequirement, ...]
    requirement: tuple[ExtensionRequirement, ...]
    unimportable: tuple[Unimportable, ...]


@cache
def te_builds() -> TeBuilds:
    """Return the recorded parts. Raises MatrixError for a table that can't be read."""
    return decode(TeBuilds, read_toml(FILE), str(FILE))


def library(te: str, cuda: str) -> str:
    """Return the distribution with the compiled library of a release for torch's CUDA, "" where there is none."""
    libraries = te_builds().library
    return next((one.package for one in libraries if one.cuda == _major(cuda) and te in one.versions), "")


def build_lack(te: str, toolkit: Toolkit, elsewhere: str = "") -> str:
    """Return why a base can't build or import a release, with the remedy; "" where it can or too little is known.

    What no nvcc mends comes first. `elsewhere` is the rest of the remedy without one.
    """
    recorded, cuda, nvcc = te_builds(), toolkit.cuda, toolkit.nvcc
    if te not in recorded.extension.versions:
        return "the package index has no source of its extension: --compile builds a clone's"
    if cuda == NONE:
        return "torch here is built without CUDA; fix: install one that is built with it"
    for pair in recorded.unimportable:
        if toolkit.torch and te in pair.versions and toolkit.torch in pair.torch:
            return f"with torch {toolkit.torch} it can't be imported: {pair.reason}"
    if cuda and not library(te, cuda):
        return f"the package index has no library of it for CUDA {_major(cuda)}, that of this torch"
    if nvcc == NONE:
        return no_nvcc(cuda, elsewhere)
    if cuda and nvcc and _major(cuda) != _major(nvcc):
        return f"nvcc is of CUDA {nvcc}, torch of {cuda}; fix: set CUDA_HOME to a toolkit of CUDA {_major(cuda)}"
    return ""


def no_nvcc(cuda: str | None, elsewhere: str = "") -> str:
    """Return that no nvcc builds a release for this CUDA of torch, with the remedy."""
    toolkit = f"CUDA's toolkit {_major(cuda)}" if cuda else "the toolkit of its torch's CUDA"
    return f"no nvcc builds it here; fix: install {toolkit} and set CUDA_HOME{elsewhere}"


def requirements(te: str, cuda: str) -> tuple[str, ...]:
    """Return the wheels that a base with this CUDA of torch needs besides the extension of a release.

    They are laid with all that they require: the Python, the library, and what the extension declares (onnx, ...).
    """
    declared = (one.package for one in te_builds().requirement if te in one.versions)
    return (f"{PYTHON}=={te}", f"{library(te, cuda)}=={te}", *declared)


def architectures(te: str, sms: Collection[str], named: str = "") -> str:
    """Return the value of NVTE_CUDA_ARCHS, `named` or for GPUs with these `sms` ("9.0"); "" where none counts."""
    if te not in te_builds().extension.cuda_sources:
        return ""
    return named or ";".join(sm.replace(".", "") for sm in sorted(set(sms), key=parse))


def jobs(cores: int, memory: int | None) -> int:
    """Return how many compilers run at once on a machine with these cores and bytes of memory."""
    return max(1, cores if memory is None else min(cores, memory // te_builds().extension.memory))


def minutes(te: str, jobs: int) -> float:
    """Return how long the build of a release is expected to take, for one compute capability."""
    extension = te_builds().extension
    return (extension.cuda_minutes if te in extension.cuda_sources else extension.minutes) / jobs


def is_compiled(te: str, toolkit: Toolkit | None, compiled: Collection[Compiled]) -> bool:
    """Return whether a release is in a bundle with the extension for this torch, whose CUDA may be unknown yet."""
    toolkit = toolkit or Toolkit()
    return any(build == Compiled.of(te, toolkit.torch or "", toolkit.cuda or build.cuda) for build in compiled)


@dataclass(frozen=True)
class NcclWheel:
    """A release of NCCL for every torch of one major version of CUDA."""

    package: str
    version: VersionText
    cuda: str


@dataclass(frozen=True)
class Refusal:
    """An exception that a shared GPU causes: a text of it, why it is raised, what to do.

    `taken`: another process causes it, also where each rank has a GPU of its own.
    """

    text: Pattern
    why: str
    fix: str
    taken: bool = False


@dataclass(frozen=True)
class NcclSharing:
    """How several ranks share one GPU over NCCL; facts/nccl.toml describes the keys."""

    versions: Range
    ranks: int
    wheel: tuple[NcclWheel, ...]
    variables: Mapping[str, str]
    mps: Mapping[str, str]
    peers: Mapping[str, str]
    refusal: tuple[Refusal, ...]

    def of_ranks(self, *, mps: bool = False, peers: bool = False) -> dict[str, str]:
        """Return the variables of each rank."""
        return {**self.variables, **(self.mps if mps else {}), **(self.peers if peers else {})}

    @property
    def blocks(self) -> int:
        """Return the blocks of a rank's kernel at most, each of which may take a multiprocessor."""
        return int(self.variables["NCCL_MAX_CTAS"])


@dataclass(frozen=True)
class SharedNccl:
    """The NCCL over which ranks share a GPU. `wheel` is laid over and preloaded, "" where it is torch's own."""

    version: str
    wheel: str = ""

    def __str__(self) -> str:
        return f"{self.version}{', preloaded' * bool(self.wheel)}"


@cache
def nccl_sharing() -> NcclSharing:
    """Return the recorded facts. Raises MatrixError for a table that can't be read."""
    return decode(NcclSharing, read_toml(NCCL_FILE), str(NCCL_FILE))


def shared_nccl(own: str | None, toolkit: Toolkit | None) -> SharedNccl | None:
    """Return the NCCL with which ranks can share a GPU: torch's own, else a wheel; None without either.

    `own` is that of the base. A base without a toolkit, such as an image, gets no wheel; one of unknown CUDA gets any.
    """
    if own and own in nccl_sharing().versions:
        return SharedNccl(own)
    wheels = (wheel for wheel in nccl_sharing().wheel if toolkit and wheel.cuda == _major(toolkit.cuda or wheel.cuda))
    return next((SharedNccl(wheel.version, f"{wheel.package}=={wheel.version}") for wheel in wheels), None)


def _major(cuda: str) -> str:
    return cuda.partition(".")[0]
