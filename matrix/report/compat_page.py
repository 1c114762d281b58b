"""The compatibility page: pick a stack; see which failures it has, at which level each was run, and workarounds.

The page computes its result from one embedded object. Python lists the known versions that each rule matches, so that
PEP 440's order is implemented once; the script only intersects these lists. For other versions the page shows the
command line to run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from matrix.catalog.cell import NAMED
from matrix.catalog.failure import Expectation, Failure, Level, Package, Rule
from matrix.catalog.model import Base, Catalog, Container
from matrix.catalog.versions import NONE, is_version, position
from matrix.report.document import document

# The axes with an input field, and its label; rules on other axes are left out.
TITLES: Final = {
    "base": "container",
    "mcore": "megatron-core",
    "te": "Transformer Engine",
    "torch": "torch",
    "driver": "driver",
    "sm": "compute capability",
}
PICKED: Final = tuple(TITLES)


def compat_page(catalog: Catalog, levels: Mapping[str, frozenset[Level]]) -> str:
    """Return the page. `levels`: the levels at which each failure has ever run on this machine."""
    return document("compat.html.j2", titles=TITLES, embedded=data(catalog, levels))


@dataclass(frozen=True)
class RuleInPage:
    """A rule, and by axis the indices of the known values that it matches."""

    expectation: Expectation
    reason: str
    takes: Mapping[str, Sequence[int]]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"expectation": self.expectation.value, "reason": self.reason, "takes": dict(self.takes)}


@dataclass(frozen=True)
class FailureInPage:
    """A failure, the levels at which it has ever run on this machine, and its rules, `broken` rules first."""

    failure: Failure
    levels: frozenset[Level]
    rules: tuple[RuleInPage, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "failure": self.failure.id,
            "title": self.failure.title,
            "levels": sorted(level.value for level in self.levels),
            "fix": " ".join(self.failure.fix.split()),
            "workarounds": [{"text": one.text, "verified": one.verified} for one in self.failure.workarounds],
            "references": list(self.failure.references),
            "reached_by": [text for way in self.failure.reached_by if (text := str(way.reached(None)))],
            "rules": [rule.to_json() for rule in self.rules],
        }


@dataclass(frozen=True)
class Embedded:
    """The object in the page: known values of each axis, the versions in each base, the failures with their rules."""

    known: Mapping[str, Sequence[str]]
    brings: Mapping[str, Mapping[str, str]]
    failures: tuple[FailureInPage, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "known": dict(self.known),
            "brings": dict(self.brings),
            "failures": [failure.to_json() for failure in self.failures],
        }


def data(catalog: Catalog, levels: Mapping[str, frozenset[Level]]) -> Embedded:
    """Return the object for the page. `levels`: the levels at which each failure has ever run on this machine."""
    known = {axis: values(catalog, axis) for axis in PICKED}
    return Embedded(
        known,
        {base.id: _brought(catalog, base.id) for base in _bases(catalog)},
        tuple(
            FailureInPage(failure, levels.get(failure.id, frozenset()), _rules(failure, known))
            for failure in catalog.failures
        ),
    )


def values(catalog: Catalog, axis: str) -> list[str]:
    """Return the values of an axis that the catalog names, in order, "none" (for base: "") first."""
    stacks = [getattr(stack.cell, axis, None) for stack in catalog.stacks]
    if axis == "base":
        return ["", *(base.id for base in _bases(catalog))]
    builds = [(failure, package) for failure in catalog.failures for package in Package]
    of_builds = {
        package: [version for failure, each in builds if each is package for version in failure.builds(package)]
        for package in Package
    }
    found: dict[str, list[str | None]] = {
        "mcore": [*(one.version for one in catalog.megatron_core), *of_builds[Package.MCORE]],
        "te": [
            *(one.version for one in catalog.transformer_engine),
            *(one.te for one in catalog.containers),
            *of_builds[Package.TE],
        ],
        "torch": [
            *(one.version for one in catalog.torch),
            *(one.torch for one in catalog.containers),
            *(one.torch for one in catalog.wheels),
        ],
        "driver": [one.branch for one in catalog.drivers],
        "sm": [one.sm for one in catalog.gpus],
    }
    versions = {value for value in (*found[axis], *stacks) if value and is_version(value)}
    return [NONE, *sorted(versions, key=lambda value: (position(value), value))]


def _bases(catalog: Catalog) -> list[Base]:
    return [*catalog.containers, *catalog.images, *catalog.wheels]


def _brought(catalog: Catalog, id: str) -> dict[str, str]:
    base = catalog.base(id)
    te = base.te if isinstance(base, Container) else None
    return {"torch": catalog.cell(id).torch, **({"te": te} if te else {})}


def _rules(failure: Failure, known: Mapping[str, list[str]]) -> tuple[RuleInPage, ...]:
    return tuple(
        RuleInPage(kind, rule.reason, takes)
        for kind, rules in ((Expectation.BROKEN, failure.affected), (Expectation.WORKS, failure.works))
        for rule in rules
        if rule.applies_to("") and (takes := _takes(rule, known)) is not None
    )


def _takes(rule: Rule, known: Mapping[str, list[str]]) -> dict[str, list[int]] | None:
    """Return by axis the indices of the known values that the rule matches; None if it can match no stack."""
    takes = {"base": [known["base"].index(base) for base in rule.base if base in known["base"]]} if rule.base else {}
    for axis, bound in rule.bounds():
        if axis in known and axis not in NAMED:
            takes[axis] = [place for place, value in enumerate(known[axis]) if value in bound]
        elif NONE not in bound:
            return None
    return takes
