"""What differs between the environments of two stacks: packages that can change one by one, and the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from matrix.ground.catalog.stack import BASE, PYTHON, TORCH, components

VENDOR: Final = "nvidia-"  # names of CUDA's libraries on PyPI, which the metadata of a torch pins


@dataclass(frozen=True)
class Differences:
    """The differences of two environments, by component: its version in the good and in the bad one.

    Each of `alone` can be another than its environment's. `together` change with the base alone: what follows torch,
    and what one of the environments lacks, "none" there.
    """

    alone: Mapping[str, tuple[str, str]]
    together: Mapping[str, tuple[str, str]]


def differences(good: Mapping[str, str], bad: Mapping[str, str], *, separable: bool) -> Differences:
    """Compare the packages of two environments, each with the minor of its Python.

    Without `separable` (a container, of which a part is known) nothing changes alone. A package that one side lacks
    can't be taken from the other, so that it changes with its environment.
    """
    names = {*good, *bad} if separable else good.keys() & bad.keys()
    versions = {
        name: (good.get(name, "none"), bad.get(name, "none"))
        for name in sorted(names - {BASE, TORCH})
        if good.get(name) != bad.get(name)
    }
    alone = {name: pair for name, pair in versions.items() if separable and "none" not in pair and not follows(name)}
    return Differences(alone, {name: pair for name, pair in versions.items() if name not in alone})


def follows(name: str) -> bool:
    """Return whether torch's own wheel fixes the version of a component, so that it has no other one beside it."""
    component = components().get(name)
    if component is None:
        return name.startswith(VENDOR)
    return component.follows == TORCH or not (component.distribution or name == PYTHON)
