"""The classes of the catalog: bases, releases, drivers and failures (matrix.ground.catalog.loading reads them)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from matrix.ground.catalog.failure import CellName, Failure, ReportedStack
from matrix.ground.catalog.schema import Identifier, VersionText
from matrix.ground.catalog.stack import (
    ABSENT,
    BASE,
    DECIDED,
    MCORE,
    PYTHON,
    TE,
    TORCH,
    Cell,
    Clause,
    Stack,
    Value,
    component_named,
    components,
)
from matrix.ground.catalog.versions import Range, is_version, minor, parse
from matrix.ground.errors import MatrixError, closest

HOST: Final = "host"  # the base of the current interpreter, where it is no base of the catalog
GIVEN: Final = "host-"  # how the ids of other interpreters begin
LABEL: Final = "NVIDIA_PYTORCH_VERSION"  # variable of NGC's PyTorch images: 24.07


@dataclass(frozen=True)
class Container:
    """An OCI image (base kind `image`). A value of None is unknown: no source was found.

    `te_source` is "sourced" (printed in a container or an issue) or "inferred" (from Transformer Engine's cadence).
    `night` is the reason why a night at level gpu has cases in it, "" if it has only those of reports and picks.
    """

    id: Identifier
    tag: str
    torch: VersionText | None = None
    python: str | None = None
    te: VersionText | None = None
    te_source: str = ""
    cuda: str | None = None
    cuda_driver_version_in_image: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    flash_attn: str | None = None
    driver_requirement: str | None = None
    driver_requirement_partial: str | None = None
    megatron_core: str | None = None
    night: str = ""

    def contents(self) -> Stack:
        """Return what the catalog knows that it contains; Transformer Engine and megatron-core too."""
        versions = {
            TORCH: self.torch,
            PYTHON: self.python,
            TE: self.te,
            MCORE: self.megatron_core,
            "cuda": self.cuda,
            "cudnn": self.cudnn,
            "nccl": self.nccl,
            "flash-attn": self.flash_attn,
        }
        stated_versions = {name: version for name, version in versions.items() if version and is_version(version)}
        return Stack({BASE: self.id, **stated_versions})

    @property
    def least_branch(self) -> int | None:
        """Return the lowest driver branch that `driver_requirement` accepts, None where it names none."""
        text = f"{self.driver_requirement or ''} {self.driver_requirement_partial or ''}"
        return min(map(int, re.findall(r"\b(\d{3})(?:\.\d+)?(?:\+| or later)", text)), default=None)


@dataclass(frozen=True)
class Wheels:
    """An environment of released wheels (base kind `wheels`); `night` is why it is in the night, "" if it is not.

    `requires` are its pip requirements besides torch, by default those of [common]; `gpu_only` are packages that a
    machine without NVIDIA's driver does not install. `variant` is why there is a further base with the torch of
    another, "" for a torch's standard base: only that one is a twin or a point of a bisection. The base `host` is one
    too; `image` is the container that it stands in, "" for none. `disk_gb` is the size of its environment, 0 where
    it was not measured. `program` is the Python of a user's environment, which is the base as it is.
    """

    id: Identifier
    torch: VersionText
    pythons: tuple[str, ...]  # minors, in order of preference
    night: str = ""
    image: str = field(default="", metadata={"toml": False})
    fallbacks: tuple[str, ...] = ()  # minors for a machine without any of `pythons`: some cases can't run on them
    requires: tuple[str, ...] = ()
    gpu_only: tuple[str, ...] = ()
    variant: str = ""
    disk_gb: float = 0.0
    program: str = field(default="", metadata={"toml": False})

    def contents(self, python: str = "") -> Stack:
        """Return what it contains on a minor of Python, by default its first: torch and the packages that it pins."""
        python = python or self.pythons[0]
        return Stack({TORCH: self.torch, PYTHON: python, BASE: self.image or self.id, **_pinned(self.requires, python)})


@dataclass(frozen=True)
class ReaderBase:
    """An environment without torch, for failures without the axis base: their cases read both APIs in it."""

    id: Identifier
    pythons: tuple[str, ...]  # minors, in order of preference
    night: str = ""
    fallbacks: tuple[str, ...] = ()

    def contents(self) -> Stack:
        """Return what it contains: no torch."""
        return Stack({TORCH: ABSENT, BASE: self.id})


@dataclass(frozen=True)
class Image:
    """An image built on the machine that runs it (base kind `image`): Debian with these packages."""

    id: Identifier
    torch: VersionText
    python: str  # its minor
    packages: tuple[str, ...]

    @property
    def tag(self) -> str:
        """Return its name in podman or docker."""
        return f"localhost/megatrix/{self.id}:latest"

    def contents(self) -> Stack:
        """Return what it contains, as far as the catalog names it."""
        return Stack({TORCH: self.torch, PYTHON: self.python, BASE: self.id})


@dataclass(frozen=True)
class Driver:
    """An NVIDIA driver branch."""

    branch: VersionText
    max_cuda_major_without_compat: str | None = None
    compat_from: VersionText | None = None
    compat_cuda: Range | None = None
    too_old_for_cuda: Range | None = None


@dataclass(frozen=True)
class GpuModel:
    """A model of GPU that reports name: a fact of the catalog, not a GPU of a machine (machine.Gpu)."""

    name: str
    sm: VersionText


@dataclass(frozen=True)
class Topic:
    """What failures are about: the question that readers of one of them ask."""

    id: Identifier
    title: str
    question: str


@dataclass(frozen=True)
class JobUse:
    """What a job can use: the names of the options that turn it on, without "--"; a star stands for any end."""

    id: Identifier
    title: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class Release:
    """A release of megatron-core, Transformer Engine or torch."""

    version: VersionText
    pypi: tuple[str, ...] | str | None = None  # upload date, or "version date" of each upload
    on_pypi: bool = True
    requires_python: Range | None = None
    requires: Mapping[str, Range] = field(default_factory=dict)  # declared ranges of packages that a base fixes
    tag: str = ""
    tag_date: str = ""
    ci_base_images: tuple[str, ...] = ()
    cuda: tuple[str, ...] = ()  # major versions for which PyPI has Transformer Engine's library (-cu12, -cu13)

    @property
    def revision(self) -> str:
        """Return its tag in clones, "" where upstream set none (`tag` then starts with "none")."""
        return "" if self.tag.startswith("none") else self.tag

    @property
    def day(self) -> str:
        """Return the date of its first upload to PyPI, else of its tag: "2024-08-15"; "" where that is unknown."""
        upload = self.pypi[0] if isinstance(self.pypi, tuple) else self.pypi
        return (upload or self.tag_date).rpartition(" ")[2]


@dataclass(frozen=True)
class Exclusion:
    """Cells that must not be planned, with the reason."""

    when: Clause
    reason: str


@dataclass(frozen=True)
class RequiredModule:
    """A module that cells need of their base; `package` has it."""

    name: Identifier
    package: Identifier
    when: Clause
    reason: str


Base = Wheels | ReaderBase | Image | Container


@dataclass(frozen=True)
class Catalog:
    """The whole catalog, checked: ids are unique, every rule matches a known cell, every reference has a target."""

    containers: tuple[Container, ...]
    wheels: tuple[Wheels, ...]
    readers: tuple[ReaderBase, ...]
    drivers: tuple[Driver, ...]
    megatron_core: tuple[Release, ...]
    transformer_engine: tuple[Release, ...]
    torch: tuple[Release, ...]
    exclusions: tuple[Exclusion, ...]
    failures: tuple[Failure, ...]
    gpus: tuple[GpuModel, ...] = ()
    images: tuple[Image, ...] = ()
    modules: tuple[RequiredModule, ...] = ()
    topics: tuple[Topic, ...] = ()
    uses: tuple[JobUse, ...] = ()
    site: tuple[Path, ...] = ()  # folders of its failures besides those of every process of this environment

    @property
    def reports(self) -> tuple[ReportedStack, ...]:
        """The stacks of all reports."""
        return tuple(report for failure in self.failures for report in failure.stack)

    @property
    def known_failures(self) -> tuple[Failure, ...]:
        """The entries that are no gates: what is counted wherever failures are counted."""
        return tuple(failure for failure in self.failures if not failure.is_gate)

    def stated(self, component: str) -> tuple[str, ...]:
        """Return the versions of a component that builds, images and reports name, releases among them."""
        builds = [version for failure in self.failures for version in failure.builds(component)]
        reported = [report.cell.versions.get(component) for report in self.reports]
        brought = [image.contents().version(component) for image in self.containers]
        return tuple(filter(None, (*builds, *reported, *brought)))

    def releases(self, component: str) -> tuple[Release, ...]:
        """Return the recorded releases of a package, oldest first; () where none are recorded."""
        recorded = {TORCH: self.torch, MCORE: self.megatron_core, TE: self.transformer_engine}
        return recorded.get(component, ())

    @cached_property
    def packages(self) -> tuple[str, ...]:
        """The packages that rules, bases and releases of the catalog name and components.toml does not, sorted."""
        ruled = {name for failure in self.failures for name in failure.open}
        declared = {name for release in self.megatron_core for name in release.requires}
        pinned = {name for base in self.wheels for name in base.contents()}
        return tuple(sorted((ruled | declared | pinned) - components().keys()))

    @cached_property
    def judged(self) -> frozenset[str]:
        """The components that a rule, an exclusion or a range declared by a release bounds."""
        rules = [rule for failure in self.failures for rule in (*failure.affected, *failure.works)]
        clauses = (*rules, *(exclusion.when for exclusion in self.exclusions))
        declared = (name for release in self.megatron_core for name in release.requires)
        return frozenset({*declared, *(name for clause in clauses for name in clause.components)})

    def failure(self, id: str) -> Failure:
        """Return the failure of that id. Raises MatrixError with a suggestion."""
        if id not in self._failures:
            raise MatrixError(
                "no such failure", got=id, expected="an id of the catalog", fix=closest(id, self._failures)
            )
        return self._failures[id]

    @cached_property
    def _failures(self) -> Mapping[str, Failure]:
        return {failure.id: failure for failure in self.failures}

    @cached_property
    def bases(self) -> Mapping[str, Base]:
        """Every base by id."""
        return {base.id: base for base in (*self.made, *self.images, *self.containers)}

    @property
    def made(self) -> tuple[Wheels | ReaderBase, ...]:
        """Every base of wheels."""
        return (*self.wheels, *self.readers)

    def base(self, id: str) -> Base:
        """Return the base of that id. Raises MatrixError with a suggestion."""
        base = self.find_base(id)
        if base is None:
            raise MatrixError("no such base", got=id, expected="a base of the catalog", fix=closest(id, self.bases))
        return base

    def find_base(self, id: str) -> Base | None:
        """Return the base of that id, also one of `by_python`; None for another id."""
        return self.bases.get(id) or self.by_python.get(id)

    @cached_property
    def by_python(self) -> Mapping[str, Wheels]:
        """The standard bases on each further Python that they have wheels for: torch-2.13.0-cp312.

        Bisections alone plan cases on them, to separate a torch from its Python. They are in no night and on no page.
        """
        return {
            base.id: base
            for standard in self.standard
            for python in (*standard.pythons[1:], *standard.fallbacks)
            for base in [_on_python(standard, python)]
        }

    def base_on(self, id: str, python: str) -> str | None:
        """Return the id of the base of wheels `id` on a minor of Python, None where the catalog names none."""
        base = self.find_base(id)
        if not isinstance(base, Wheels) or base.program:
            return None
        standard = next((entry for entry in self.standard if entry.torch == base.torch), base)
        on_python = standard if python == standard.pythons[0] else _on_python(standard, python)
        return on_python.id if self.find_base(on_python.id) else None

    @property
    def standard(self) -> tuple[Wheels, ...]:
        """The wheels bases without the variants: one for each torch."""
        return tuple(base for base in self.wheels if not base.variant)

    def twin(self, image: Container) -> Wheels | None:
        """Return the twin of an image: the lowest standard base with its torch minor, None if there is none."""
        if image.torch is None:
            return None
        bases = [base for base in self.standard if minor(base.torch) == minor(image.torch)]
        return min(bases, key=lambda base: parse(base.torch), default=None)

    def twins_of(self, base: Wheels) -> tuple[Container, ...]:
        """Return the images whose twin is `base`."""
        return self._twins.get(base.id, ())

    @cached_property
    def _twins(self) -> Mapping[str, tuple[Container, ...]]:
        by_base: dict[str, tuple[Container, ...]] = {}
        for image in self.containers:
            if twin := self.twin(image):
                by_base[twin.id] = (*by_base.get(twin.id, ()), image)
        return by_base

    def container_in(self, stack: Stack) -> Container | None:
        """Return the container that a stack names, None where it names none."""
        base = self.bases.get(stack.version(BASE) or "")
        return base if isinstance(base, Container) else None

    def container_of(self, torch: str, label: str = "") -> Container | None:
        """Return the container with this torch, of the same commit; None where there is none or more than one.

        `label` is NVIDIA_PYTORCH_VERSION ("24.07"), which also is the end of torch's local version (+COMMIT.nv24.07).
        It selects among containers with the same torch, and names one whose torch is not in the catalog.
        """
        build = re.fullmatch(r"(\w{7,})(?:\.nv(\d+)\.(\d+))?", parse(torch).local or "" if is_version(torch) else "")
        if build is None:
            return None
        label = label or (f"{build[2]}.{build[3]:0>2}" if build[2] else "")
        labelled = self.bases.get(f"ngc-{label}")
        images = [image for image in self.containers if image.torch and _same_build(image.torch, torch)]
        if isinstance(labelled, Container) and (labelled in images or (not labelled.torch and not images)):
            return labelled
        return images[0] if len(images) == 1 else None

    def cell(
        self, base: str, values: Mapping[str, Value] | None = None, packages: Collection[str] = (), python: str = ""
    ) -> Cell:
        """Return the cell on a base of the catalog, with what the base contains and these values laid over it.

        `packages` are those of `values` that the id names besides its fixed parts. `python` is a minor of a base of
        wheels, by default its first. Transformer Engine and megatron-core of a container count where `values` has them.
        """
        if (base, python) not in self._bare:
            self._bare[base, python] = self._bare_stack(base, python)
        bare = self._bare[base, python]
        return Cell(base, bare.with_(values) if values else bare, tuple(packages))

    @cached_property
    def _bare(self) -> dict[tuple[str, str], Stack]:
        """The stacks of cells without values, by base and Python: a night makes 30,000 cells."""
        return {}

    def _bare_stack(self, base: str, python: str) -> Stack:
        entry = self.base(base)
        contents = entry.contents(python) if isinstance(entry, Wheels) else entry.contents()
        unused = [name for name in DECIDED if name not in contents.components and name not in (TORCH, PYTHON)]
        return contents.with_(dict.fromkeys((*unused, MCORE, TE), ABSENT))

    def cell_named(self, name: CellName) -> Cell:
        """Return the cell that an entry names, of a report with its hardware."""
        return self.cell(name.base, name.versions, [package for package in name.versions if package not in DECIDED])

    def excluded(self, stack: Stack, overridden: Collection[str] = ()) -> str | None:
        """Return why a cell with this stack must not be planned, None if it may.

        `overridden` are packages whose ranges do not count (Failure.overrides).
        """
        for exclusion in self.exclusions:
            if exclusion.when.matches(stack) and not exclusion.when.bounds.keys() & set(overridden):
                return exclusion.reason
        core, python = stack.version(MCORE), stack.version(PYTHON)
        release = self._mcore.get(core or "")
        if release is None:
            return None
        if release.requires_python and python and python not in release.requires_python:
            return f"megatron-core {core} needs Python {release.requires_python.text}; the base has {python}"
        for name, declared in release.requires.items():
            version = stack.version(name)
            if version and version not in declared and name not in overridden:
                return f"megatron-core {core} declares {name}{declared.text}; the base has {version}"
        return None

    @cached_property
    def _mcore(self) -> Mapping[str, Release]:
        return {release.version: release for release in self.megatron_core}


def _on_python(base: Wheels, python: str) -> Wheels:
    """Return a base on this minor of Python alone."""
    id = Identifier(f"{base.id}-cp{python.replace('.', '')}")
    variant = f"{base.id} on Python {python}"
    return replace(base, id=id, pythons=(python,), fallbacks=(), night="", variant=variant)


@cache
def _pinned(requires: tuple[str, ...], python: str) -> Mapping[str, str]:
    """Return the exact pins among pip requirements for a minor of Python: component -> version."""
    marked = {"python_version": python, "python_full_version": f"{python}.0"}
    return {
        component_named(pin.name) or canonicalize_name(pin.name): str(pin.specifier).removeprefix("==")
        for pin in map(Requirement, requires)
        if str(pin.specifier).startswith("==") and (pin.marker is None or pin.marker.evaluate(marked))
    }


def _same_build(one: str, other: str) -> bool:
    """Return whether two versions have the same public part and the same commit, which may be abbreviated."""
    container, torch = parse(one), parse(other)
    short, long = sorted(((version.local or "").partition(".")[0] for version in (container, torch)), key=len)
    return container.public == torch.public and short != "" and long.startswith(short)
