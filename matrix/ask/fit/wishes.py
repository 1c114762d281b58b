"""The wishes that `megatrix fit` is given: releases, ranges, a GPU, a driver, Pythons."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from matrix.ask.check.user_stack import capability_of
from matrix.ground.catalog.distributions import Distributions
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.stack import (
    ABSENT,
    CUDA,
    DRIVER,
    MCORE,
    PYTHON,
    SM,
    TE,
    TORCH,
    component_named,
    component_title,
    components,
    short,
)
from matrix.ground.catalog.versions import is_version, parse
from matrix.ground.errors import MatrixError, closest

FORM: Final = '"torch=2.9.1" "gpu=H100" "driver=550" "megatron-core=newest" "flash-attn" "te>=2.8" "mamba-ssm=none"'
CHOSEN: Final = (MCORE, TE, TORCH)  # without a wish, too; PYTHON follows
GIVEN: Final = (DRIVER, SM)  # facts of a machine, not chosen
CLONED: Final = ("apex",)  # in no index: they are compiled from a clone
LIBRARIES: Final = (CUDA, "cudnn", "nccl", "nvidia-cublas", "triton", "nvshmem")  # that a build of torch fixes
WORD: Final = re.compile(r"([A-Za-z][\w.-]*)\s{0,99}(.*)", re.DOTALL)


class Order(str, Enum):
    """Which of the releases that fit is the best."""

    NEWEST = "newest"
    OLDEST = "oldest"


@dataclass(frozen=True)
class Wish:
    """What is wished of one component: its limits, an order, or that it is absent. `text` is as the user gave it."""

    component: str
    text: str
    limits: SpecifierSet = field(default_factory=SpecifierSet)
    order: Order = Order.NEWEST
    absent: bool = False

    def allows(self, version: str) -> bool:
        """Return whether a version is inside the limits."""
        return self.limits.contains(version, prereleases=True)


@dataclass(frozen=True)
class Framework:
    """A release of a trainer above megatron-core, whose declared ranges count; `extras` are those of them that do."""

    name: str
    version: str
    extras: tuple[str, ...] = ()

    def __str__(self) -> str:
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        return f"{self.name}{extras}=={self.version}"


@dataclass(frozen=True)
class Wishes:
    """Everything that is wished, by component in the order given; `given` are facts of the machine."""

    by_component: Mapping[str, Wish] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    framework: Framework | None = None
    machine: str = "x86_64"

    def without(self, names: Iterable[str]) -> Wishes:
        """Return the wishes without those of these components."""
        left_out = set(names)
        return Wishes(
            {name: wish for name, wish in self.by_component.items() if name not in left_out},
            {name: value for name, value in self.given.items() if name not in left_out},
            None if "framework" in left_out else self.framework,
            self.machine,
        )

    def text(self, name: str) -> str:
        """Return a wish as the user gave it."""
        if name == "framework":
            return f"--for {self.framework}"
        return self.by_component[name].text if name in self.by_component else f"{short(name)}={self.given[name]}"


def parse_wishes(
    catalog: Catalog, distributions: Distributions, words: Sequence[str], framework: str = "", machine: str = "x86_64"
) -> Wishes:
    """Return the wishes of words such as "torch=2.9.1" or "gpu=H100". Raises MatrixError with a suggestion."""
    by_component: dict[str, Wish] = {}
    given: dict[str, str] = {}
    for word in (part for text in words for part in _parts(text)):
        match = WORD.match(word)
        if match is None:
            raise MatrixError("not a wish", got=word, expected=FORM)
        name, rest = match[1], match[2].strip()
        if name.lower() == "gpu":
            component, rest = SM, f"={capability_of(catalog, rest.lstrip('= '))}"
        else:
            component = _component(distributions, name)
        if component in by_component or component in given:
            raise MatrixError("a component is named twice", got=word, expected=f"one {short(component)}")
        if component in GIVEN:
            given[component] = _fact(catalog, component, word, rest.lstrip("= "))
        else:
            releases = [release.version for release in catalog.releases(component)]
            releases = releases or [*distributions.by_package.get(component, ())]
            by_component[component] = _wish(component, word, rest, releases)
            _must_exist(by_component[component], releases)
    return Wishes(by_component, given, _framework(distributions, framework) if framework else None, machine)


def _parts(text: str) -> list[str]:
    """Return the wishes of one argument: of "torch=2.9.1 gpu=RTX 4090" two; commas and spaces belong to ranges."""
    gpu = r"gpu *= *(?:(?:nvidia|geforce|rtx|tesla) +)*\S+"
    return re.findall(rf"(?i:{gpu})|\S+(?:\s{{0,9}}(?:[<>=!~]=?|,)\s{{0,9}}\S+)*", text)


def _component(distributions: Distributions, name: str) -> str:
    recorded = [package.name for package in distributions.package if not package.framework]
    component = component_named(name, recorded)
    usable = {*CHOSEN, *GIVEN, *LIBRARIES, PYTHON, *CLONED, *recorded}
    usable = {each for each in usable if component_named(each, recorded) == each}
    if component in usable:
        return component
    words = {*usable, *(row.short for row in components().values() if row.name in usable and row.short), "gpu"}
    if component or component_named(name):
        raise MatrixError(
            f"fit does not choose {component_title(component or component_named(name))}",
            got=name,
            expected=", ".join(sorted(words)),
            fix="`megatrix check` judges it in a stack; releases of other packages are not recorded",
        )
    raise MatrixError("no such component", got=name, expected="a package, gpu, driver, ...", fix=closest(name, words))


def _fact(catalog: Catalog, component: str, word: str, value: str) -> str:
    """Return a driver (550, 550.54.15) or a compute capability (9.0, 90, sm90) as a version."""
    if component == SM:
        digits = re.sub(r"^sm_?", "", value.lower()).rstrip("a")
        value = f"{digits[:-1]}.{digits[-1]}" if re.fullmatch(r"\d{2,3}", digits) else digits
        capabilities = sorted({gpu.sm for gpu in catalog.gpus}, key=parse)
        if value not in capabilities:
            raise MatrixError("no such compute capability", got=word, expected=", ".join(capabilities))
    branches = [driver.branch for driver in catalog.drivers]
    if not is_version(value) or (component == DRIVER and value.split(".")[0] not in branches):
        raise MatrixError("no such driver", got=word, expected="a branch or a version", fix=closest(value, branches))
    return value


def _wish(component: str, word: str, rest: str, releases: Sequence[str]) -> Wish:
    value = rest.removeprefix("==").removeprefix("=").strip()
    if not rest:
        return Wish(component, word)
    if rest[0] == "=" and value in (str(ABSENT), *(order.value for order in Order)):
        return Wish(
            component, word, order=Order(value) if value != str(ABSENT) else Order.NEWEST, absent=value == "none"
        )
    if rest[0] == "=" and not is_version(value.removesuffix(".*")):
        raise MatrixError("not a version", got=word, expected="a version, a range, newest, oldest or none", fix=FORM)
    try:
        limits = _exactly(value, releases) if rest[0] == "=" else SpecifierSet(rest)
        limits.contains("1")  # ValueError for a number of 5,000 digits
        return Wish(component, word, limits)
    except ValueError:  # also InvalidSpecifier
        raise MatrixError("not a range", got=word, expected="such as torch>=2.8,<2.10", fix=FORM) from None


def _exactly(value: str, releases: Sequence[str]) -> SpecifierSet:
    """Return the limits of a version: a recorded release means itself, 2.9 each 2.9.*."""
    version = value.removesuffix(".*")
    prefix = re.fullmatch(r"\d+(\.\d+)*", version) and value not in releases
    return SpecifierSet(f"=={version}.*" if prefix else f"=={version}")


def _must_exist(wish: Wish, releases: Sequence[str]) -> None:
    """Raise MatrixError where no recorded release is inside the limits of a wish."""
    if releases and not wish.absent and not any(map(wish.allows, releases)):
        text = re.sub(r"^[\w.-]+?[=<>!~]+", "", wish.text)
        newest = f"{releases[0]} .. {releases[-1]} are recorded"
        raise MatrixError(
            f"no such release of {component_title(wish.component)}",
            got=wish.text,
            expected=newest,
            fix=closest(text, releases),
        )


def _framework(distributions: Distributions, text: str) -> Framework:
    """Return the release of a framework that a requirement such as "ms-swift[megatron]==4.6.0" means."""
    packages = {package.name: package for package in distributions.package if package.framework}
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        raise MatrixError("not a requirement", got=text, expected="such as verl==0.9.1") from None
    name = str(canonicalize_name(requirement.name))
    name = {"nemo": "nemo-toolkit", "swift": "ms-swift", "bridge": "megatron-bridge"}.get(name, name)
    if name not in packages:
        raise MatrixError("no such framework", got=text, expected=", ".join(packages), fix=closest(name, packages))
    versions = [*distributions.by_package[name]]
    fitting = [version for version in versions if requirement.specifier.contains(version, prereleases=True)]
    if not fitting:
        expected = f"{versions[0]} .. {versions[-1]} are recorded"
        raise MatrixError(f"no such release of {name}", got=text, expected=expected, fix=closest(text, versions))
    return Framework(name, fitting[-1], tuple(sorted(requirement.extras)) or packages[name].extras)
