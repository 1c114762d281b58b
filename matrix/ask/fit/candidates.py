"""The releases among which `megatrix fit` chooses, on each axis in the order of preference."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from typing import Final

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from matrix.ask.fit.wishes import CHOSEN, CLONED, LIBRARIES, Order, Wish, Wishes
from matrix.ground.catalog.distributions import Builds, Distributions, IndexedRelease
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.stack import CUDA, PYTHON, TE, TORCH, components
from matrix.ground.catalog.versions import minor, parse

# The requirements of torch's wheels that fix a component; the rest of the name is the CUDA major.
REQUIRED: Final = {"nvidia-cudnn": "cudnn", "nvidia-nccl": "nccl", "nvidia-nvshmem": "nvshmem", "triton": "triton"}
UPGRADED: Final = ("cudnn", "nvidia-cublas")  # beside torch, with pip
INDEX: Final = "index"  # the source of a wheel: the package index, else a name of `uv pip install --torch-backend`


@dataclass(frozen=True)
class Candidate:
    """One release on an axis. `fixes` are the versions of the components that it fixes, "" for an absent one.

    `backend` is INDEX, or the CUDA of torch's other wheels as uv names it: "cu126". `replaced` are the versions of
    those libraries which torch's wheel brings and which a newer one in `fixes` replaces.
    """

    axis: str
    version: str
    fixes: Mapping[str, str] = field(default_factory=dict)
    backend: str = INDEX
    replaced: Mapping[str, str] = field(default_factory=dict)

    @property
    def as_brought(self) -> Candidate:
        """Return it with all libraries as torch's wheel brings them."""
        return replace(self, fixes={**self.fixes, **self.replaced}, replaced={})

    def __str__(self) -> str:
        return self.version if self.backend == INDEX else f"{self.version}+{self.backend}"


@dataclass(frozen=True)
class Recorded:
    """The facts that the choice reads."""

    catalog: Catalog
    distributions: Distributions
    builds: Builds

    @cached_property
    def brought(self) -> list[dict[str, str]]:
        """The libraries that each recorded wheel of torch brings."""
        releases = self.distributions.by_package[TORCH].values()
        return [
            *(libraries(self.distributions, release) for release in releases),
            *({CUDA: row.cuda, "cudnn": row.cudnn} for row in self.builds.torch_cuda),
        ]


def axes(recorded: Recorded, wishes: Wishes, *, upgrades: bool = False) -> dict[str, list[Candidate]]:
    """Return the candidates of each axis, the best first; the axis that matters most is first.

    Those with a wish for an order come first, then megatron-core, Transformer Engine, torch, other packages, Python.
    With `upgrades`, each torch is also there with a newer library than its wheel brings.
    """
    named = [name for name, wish in wishes.by_component.items() if not wish.absent and name not in LIBRARIES]
    ordered = [
        name for name in named if wishes.by_component[name].text.endswith((Order.NEWEST.value, Order.OLDEST.value))
    ]
    names = dict.fromkeys((*ordered, *CHOSEN, *named))
    names.pop(PYTHON, None)
    return {
        name: list(_candidates(recorded, wishes, name, upgrades=upgrades))
        for name in (*names, PYTHON)
        if not (name in wishes.by_component and wishes.by_component[name].absent)
    }


def _candidates(recorded: Recorded, wishes: Wishes, axis: str, *, upgrades: bool) -> Iterator[Candidate]:
    wish = wishes.by_component.get(axis, Wish(axis, axis))
    versions = [version for version in _versions(recorded, axis) if wish.allows(version)]
    for version in versions if wish.order is Order.OLDEST else versions[::-1]:
        if axis == TORCH:
            builds = list(_torches(recorded, wishes, version))
            upgraded = chain.from_iterable(_upgraded(recorded, build) for build in builds if upgrades)
            yield from filter(partial(_brings, wishes), (*builds, *upgraded))
        else:
            yield Candidate(axis, version, {axis: version})


def _versions(recorded: Recorded, axis: str) -> list[str]:
    """Return the releases of an axis that the index has, oldest first."""
    if axis == PYTHON:
        minors = {minor for release in recorded.distributions.by_package[TORCH].values() for minor in release.pythons}
        return sorted(minors, key=Version)
    if axis in CLONED:
        return [components()[axis].example]
    indexed = recorded.distributions.by_package.get(axis, {})
    releases = [release.version for release in recorded.catalog.releases(axis)]
    return [version for version in releases or indexed if version in indexed]


def _torches(recorded: Recorded, wishes: Wishes, version: str) -> Iterator[Candidate]:
    """Yield the builds of a release of torch: the one of the index, then those for other CUDAs, newest CUDA first."""
    if (cuda := wishes.by_component.get(CUDA)) and cuda.absent:
        yield Candidate(TORCH, version, {TORCH: version, CUDA: ""}, "cpu")
        return
    release = recorded.distributions.by_package[TORCH][version]
    usual = {TORCH: version, **libraries(recorded.distributions, release)}
    rows = [row for row in recorded.builds.torch_cuda if row.torch == minor(version) and row.cuda != usual.get(CUDA)]
    others = [
        Candidate(
            TORCH,
            version,
            {
                TORCH: version,
                CUDA: row.cuda,
                "triton": usual.get("triton", ""),
                **{name: value for name, value in (("cudnn", row.cudnn), ("nccl", row.nccl)) if value},
                **_cublas(recorded.distributions, row.cuda),
            },
            f"cu{row.cuda.replace('.', '')}",
        )
        for row in sorted(rows, key=lambda row: parse(row.cuda), reverse=True)
    ]
    for candidate in (Candidate(TORCH, version, usual), *others):
        yield replace(candidate, fixes={name: value for name, value in candidate.fixes.items() if value})


def _brings(wishes: Wishes, torch: Candidate) -> bool:
    """Return whether a build of torch has the libraries that are wished; one without CUDA is wished as such."""
    wanted = [wish for name, wish in wishes.by_component.items() if name in LIBRARIES and not wish.absent]
    return all(wish.component in torch.fixes and wish.allows(torch.fixes[wish.component]) for wish in wanted)


def _upgraded(recorded: Recorded, torch: Candidate) -> Iterator[Candidate]:
    """Yield a build of torch with the newest cuDNN or cuBLAS that a wheel of torch for the same CUDA major brings."""
    major = f"{torch.fixes.get(CUDA, '').partition('.')[0]}."
    for name in UPGRADED:
        versions = [
            wheel[name] for wheel in recorded.brought if wheel.get(CUDA, "").startswith(major) and wheel.get(name)
        ]
        current, newest = torch.fixes.get(name), max(versions, key=parse, default="0")
        if current and parse(newest) > parse(current):
            yield replace(torch, fixes={**torch.fixes, name: newest}, replaced={name: current})


def libraries(distributions: Distributions, release: IndexedRelease) -> dict[str, str]:
    """Return the libraries that the index's wheel of torch requires: CUDA's minor, cuDNN, NCCL, cuBLAS, ..."""
    fixes = {}
    declared = release.ranges(release.pythons[-1] if release.pythons else "3.12")
    for name, limits in declared.items():
        version = exact(limits)
        component = REQUIRED.get(re.sub(r"-cu\d\d$", "", name))
        if component and version:
            fixes[component] = version
        elif name == "nvidia-cublas" and version:
            fixes[name] = version
        elif name in ("cuda-toolkit", "nvidia-cuda-runtime-cu12") and version:
            fixes[CUDA] = minor(version)
            if name == "cuda-toolkit":
                fixes = {**_cublas(distributions, version), **fixes}
    return fixes


def _cublas(distributions: Distributions, cuda: str) -> dict[str, str]:
    """Return the cuBLAS of the newest recorded toolkit of a CUDA version; of CUDA 12 it is another package."""
    toolkits = [
        release
        for version, release in distributions.by_package["cuda-toolkit"].items()
        if parse(version).release[: len(parse(cuda).release)] == parse(cuda).release
    ]
    limits = toolkits[-1].ranges("3.12", ("cublas",)).get("nvidia-cublas") if toolkits else None
    return {"nvidia-cublas": exact(limits)} if limits and parse(cuda).major > 12 else {}


def exact(limits: SpecifierSet) -> str:
    """Return the version that limits fix, or the newest that they allow by name; "" for none."""
    versions = [clause.version.removesuffix(".*") for clause in limits if clause.operator in ("==", "<=")]
    return max(versions, key=parse, default="")


def cuda_package(cuda: str) -> str:
    """Return the package with Transformer Engine's library for a CUDA version."""
    return f"{TE}-cu{parse(cuda).major}"


def library_package(component: str, cuda: str) -> str:
    """Return the package with a library of CUDA for a CUDA version."""
    return f"nvidia-cudnn-cu{parse(cuda).major}" if component == "cudnn" else component
