"""The stack that a user checks: versions, each with the place that states it, and what nothing states."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from matrix.catalog.cell import WRITER, Cell, pinned
from matrix.catalog.codec import encode
from matrix.catalog.failure import Package
from matrix.catalog.model import Base, Catalog, Container
from matrix.catalog.versions import NONE, is_version, parse
from matrix.errors import MatrixError, closest

COMMAND_LINE: Final = "command line"  # the source of a version that the user types
# The axes of a stack, and how they are called in texts.
AXES: Final = {
    "base": "container",
    "torch": "torch",
    "mcore": "megatron-core",
    "te": "Transformer Engine",
    "driver": "driver",
    "sm": "compute capability",
    "gpus": "number of GPUs",
    "python": "Python",
}
# Axes by the names of distributions, and other usual names.
ALIASES: Final = {
    "pytorch": "torch",
    "megatron-core": "mcore",
    "megatron-lm": "mcore",
    "transformer-engine": "te",
    "transformer-engine-torch": "te",
    "transformer-engine-cu12": "te",
    "transformer-engine-cu13": "te",
    "writer-mcore": "writer_mcore",
    "writer-te": "writer_te",
}
# How axes are called in texts, with those of the writer of a checkpoint.
NAMES: Final = {
    **AXES,
    "writer_mcore": "a checkpoint written by megatron-core",
    "writer_te": "a checkpoint written with Transformer Engine",
}
EXAMPLES: Final = {"torch": "2.4.1", "mcore": "0.9.0", "te": "1.9.0", "driver": "535", "sm": "9.0", "gpus": "8"}
RELEASE_TAG: Final = re.compile(r"^(?:core_[vr]|v)(?=\d)")
FORM: Final = (
    '"mcore=0.9.0 te=1.9.0+e79d915 torch=2.4.1 driver=535"; base=ngc-24.07 stands for the torch and TE of an image'
)
# An image of NVIDIA in any notation: nvcr.io/nvidia/pytorch:24.07-py3, nvcr.io#nvidia/..., nvidia+pytorch+24.07.sqsh
NVIDIA_IMAGE: Final = re.compile(r"(?:^|[^a-z])(pytorch|nemo)[:+_@-](?:v)?(\d\d\.\d\d)(?!\d)", re.IGNORECASE)
TORCH_IMAGE: Final = re.compile(r"(?:^|/)pytorch/pytorch:(\d+\.\d+\.\d+)")
FAMILY: Final = {"pytorch": "ngc", "nemo": "nemo"}


@dataclass(frozen=True)
class Statement:
    """One version that a source states: `name` is an axis or a package, `limits` a PEP 440 specifier set.

    `version` is "" where only limits are stated, "none" where the package is absent.
    """

    name: str
    version: str
    source: str
    limits: str = ""


@dataclass(frozen=True)
class UserStack:
    """The stack that a user checks.

    `open` are the axes that nothing states; their value in `cell` is "none". An axis that is not open and "none" is
    absent. `limits` are specifier sets of open axes, `sources` the place of each axis and package. `notes` are what
    could not be read or contradicts itself. `closed`: a package that nothing states is absent.
    """

    cell: Cell
    open: tuple[str, ...] = ()
    limits: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    closed: bool = False

    @property
    def packages(self) -> Mapping[str, str]:
        """Return the versions of the packages that have no axis."""
        return pinned(self.cell.packages)

    def is_open(self, name: str) -> bool:
        """Return whether nothing states the version on an axis, or of a package."""
        if name in AXES:
            return name in self.open
        if name in WRITER:
            return self.cell.version(name) == NONE
        return not (self.closed or name in self.packages)

    @property
    def named(self) -> list[tuple[str, str, str]]:
        """Return (axis or package, version, source) of everything that is stated."""
        axes = [(axis, getattr(self.cell, axis)) for axis in NAMES if axis not in self.open]
        return [
            (name, value, self.sources.get(name, ""))
            for name, value in (*axes, *self.packages.items())
            if value and (value != NONE or name in self.sources)
        ]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "cell": encode(self.cell),
            "open": list(self.open),
            "limits": dict(self.limits),
            "packages": dict(self.packages),
            "sources": dict(self.sources),
            "notes": list(self.notes),
        }


def packages_of(catalog: Catalog) -> list[str]:
    """Return the packages without an axis that failures and releases depend on, canonical."""
    failures = [name for failure in catalog.failures for name in failure.open]
    releases = [name for release in catalog.megatron_core for name in release.requires]
    return sorted({*failures, *releases} - AXES.keys())


def axis_of(name: str, packages: Collection[str]) -> str:
    """Return the axis, or the package among `packages`, that a name means, "" for any other name."""
    canonical: str = canonicalize_name(name)
    found = ALIASES.get(canonical, canonical)
    return found if found in NAMES or found in packages else ""


def parse_text(catalog: Catalog, text: str) -> list[Statement]:
    """Return the statements of a text such as "mcore=0.8.0 torch=2.4.1". Raises MatrixError with a suggestion."""
    found: dict[str, Statement] = {}
    packages = packages_of(catalog)
    for word in text.replace(",", " ").split():
        name, equals, value = word.partition("=")
        value = RELEASE_TAG.sub("", value.removeprefix("="))  # as in a requirements file, or as a tag of git
        if not equals and (image := image_of(catalog, word)):
            name, equals, value = "base", "=", image.id
        if not equals or not value:
            raise MatrixError("not a stack", got=word, expected=FORM)
        axis = axis_of(name, packages)
        if not axis:
            known = (*NAMES, *packages)
            raise MatrixError("no such axis or package", got=name, expected=FORM, fix=closest(name, known))
        if axis in found:
            raise MatrixError("an axis is named twice", got=word, expected=f"one {axis}")
        if axis == "base":
            image = image_of(catalog, value)
            value = image.id if image else catalog.base(value).id
        elif value != NONE and not is_version(value):
            example = f"{axis}={EXAMPLES.get(axis, '1.2.3')}"
            raise MatrixError("not a version", got=word, expected=f"a PEP 440 version, such as {example}")
        found[axis] = Statement(axis, value, COMMAND_LINE)
    if not found:
        raise MatrixError("no stack", got=repr(text), expected=FORM)
    return list(found.values())


def image_of(catalog: Catalog, reference: str) -> Container | None:
    """Return the container of the catalog that an image reference means, in the notation of any tool."""
    for container in catalog.containers:
        if reference in (container.tag, container.id):
            return container
    found = NVIDIA_IMAGE.search(reference)
    known = catalog.bases.get(f"{FAMILY[found[1].lower()]}-{found[2]}") if found else None
    return known if isinstance(known, Container) else None


def image_statements(catalog: Catalog, reference: str, source: str) -> tuple[list[Statement], str]:
    """Return what an image states, and a note where the catalog does not know it."""
    if container := image_of(catalog, reference):
        return [Statement("base", container.id, source)], ""
    if torch := TORCH_IMAGE.search(reference):
        return [Statement("torch", torch[1], source)], ""
    return [], f"{source}: the catalog does not know the image {reference}, so its packages are not known"


def build(
    catalog: Catalog,
    statements: Iterable[Statement],
    *,
    closed: bool = False,
    label: str = "",
    notes: Sequence[str] = (),
) -> UserStack:
    """Return the stack of these statements; a later one replaces an earlier one, and a note names the two.

    `closed`: the statements name every package of the environment, so that another one is absent. `label` is
    NVIDIA_PYTORCH_VERSION, for a torch of an NGC image.
    """
    said: dict[str, Statement] = {}
    more = list(notes)
    for one in statements:
        before = said.get(one.name)
        if before and before.version and one.version and before.version != one.version:
            more.append(
                f"{NAMES.get(one.name, one.name)}: {before.version} ({before.source}), then {one.version} "
                f"({one.source}); the later one counts"
            )
        if not (before and before.version and not one.version):
            said[one.name] = one
    values = {name: one.version for name, one in said.items() if one.version}
    sources = {name: one.source for name, one in said.items() if one.version}
    base = catalog.bases[values["base"]] if values.get("base") else None
    if base:
        brought = _brought(catalog, base)
        if unknown := [AXES[axis] for axis in ("torch", "te") if axis not in brought and axis not in values]:
            more.append(f"the catalog does not know the {' and the '.join(unknown)} of {base.id}")
        replaced = "torch" in brought and values.get("torch", brought["torch"]) != brought["torch"]
        for axis, version in brought.items():
            if axis not in values:
                values[axis], sources[axis] = version, f"in {base.id}"
        if replaced:
            more.append(f"torch {values['torch']} ({sources['torch']}) replaces that of {base.id}")
            base = None
    values.pop("base", None)
    image = catalog.container_of(values["torch"], label) if not base and values.get("torch", NONE) != NONE else None
    if closed and not base:
        for axis in ("torch", "mcore", "te"):
            if axis not in values:
                values[axis], sources[axis] = NONE, "absent"
    open_ = tuple(axis for axis in AXES if axis not in values and not (axis == "base" and (base or "torch" in values)))
    axes: dict[str, Any] = {axis: version for axis, version in values.items() if axis in NAMES}
    packages = tuple(sorted(f"{name}=={version}" for name, version in values.items() if name not in NAMES))
    return UserStack(
        Cell(
            base.id if base else "",
            **{"torch": NONE, "mcore": NONE, **axes},
            image=image.id if image else NONE,
            packages=packages,
        ),
        open_,
        {name: one.limits for name, one in said.items() if one.limits and name not in values},
        sources,
        tuple(more),
        closed and not base,
    )


def _brought(catalog: Catalog, base: Base) -> dict[str, str]:
    """Return the versions that a base contains, as far as they are known."""
    cell = catalog.cell(base.id)
    found = {axis: getattr(cell, axis) for axis in ("torch", "python")}
    if isinstance(base, Container):
        found |= {"te": base.te or NONE}
        if base.megatron_core and is_version(base.megatron_core):
            found["mcore"] = base.megatron_core
    return {axis: version for axis, version in found.items() if version != NONE}


def possible(catalog: Catalog, stack: UserStack, axis: str, bound: str = "") -> list[str]:
    """Return the recorded values of an open axis that the stack's limits allow, oldest first.

    Of a package no values are recorded: those of its limits and of `bound`, and the next ones, stand for all others.
    """
    limits = stack.limits.get(axis, "")
    bounds = [] if axis in NAMES or not limits else re.findall(r"\d[\w.!]*\w|\d", f"{limits},{bound}")
    next_ = [f"{parse(one).base_version}.1" for one in bounds if is_version(one)]
    samples = sorted({"0", *filter(is_version, bounds), *next_}, key=parse) if bounds else []
    return [version for version in recorded(catalog, axis) or samples if allows(stack, axis, version)]


def allows(stack: UserStack, axis: str, version: str) -> bool:
    """Return whether the limits of an axis allow a version; limits that are no specifier set allow every version."""
    try:
        return not stack.limits.get(axis) or SpecifierSet(stack.limits[axis]).contains(version, prereleases=True)
    except InvalidSpecifier:
        return True


def recorded(catalog: Catalog, axis: str) -> list[str]:
    """Return the values of an axis that the catalog records, oldest first; releases only, without builds."""
    if axis == "driver":
        return [one.branch for one in catalog.drivers]
    if axis == "sm":
        return sorted({one.sm for one in catalog.gpus}, key=parse)
    releases = {"torch": catalog.torch, "mcore": catalog.megatron_core, "te": catalog.transformer_engine}
    return [one.version for one in releases.get(axis.removeprefix("writer_"), ())]


def unrecorded(catalog: Catalog, stack: UserStack) -> dict[str, str]:
    """Return, by axis, why the stack's version is none that the catalog knows; such a version may not exist."""
    found = {}
    for axis in ("torch", "mcore", "te", *WRITER):
        version = getattr(stack.cell, axis)
        if version != NONE and axis not in stack.open and (why := _unrecorded(catalog, axis, version)):
            found[axis] = f"{NAMES[axis]} {version} {why}"
    return found


def _unrecorded(catalog: Catalog, axis: str, version: str) -> str:
    known = recorded(catalog, axis)
    if not known or version in known:
        return ""
    given = parse(version)
    public = [parse(one) for one in known]
    if parse(given.public) in public:
        return ""
    builds = [
        build.version
        for failure in catalog.failures
        for build in failure.build
        if build.package is {"mcore": Package.MCORE, "te": Package.TE}.get(axis)
    ]
    brought = [version for one in catalog.containers for version in (one.torch, one.te, one.megatron_core)]
    stacks = [getattr(one.cell, axis, None) for one in catalog.stacks]
    if version in (*builds, *brought, *stacks):
        return ""
    if given > max(public):
        return f"is newer than every release that this catalog knows: {known[-1]} is the newest"
    if given.is_prerelease and parse(given.base_version) in public:
        return ""
    lower = [one for one in known if parse(one) < given]
    upper = next(one for one in known if parse(one) > given)
    return (
        f"is no release that this catalog knows: {f'{lower[-1]}, then {upper}' if lower else f'{upper} is the first'}"
    )
