"""Whether a set of releases is possible: the catalog's breaks, declared ranges, files of the index. One engine decides.

A rejection names the axes that decide it, so that the search changes one of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from packaging.specifiers import SpecifierSet

from matrix.ask.check.calls import calls_of
from matrix.ask.check.rulings import clashes
from matrix.ask.check.user_stack import UserStack
from matrix.ask.fit.candidates import Candidate, Recorded, cuda_package
from matrix.ask.fit.wishes import LIBRARIES, Wishes
from matrix.ground.catalog.distributions import IndexedRelease
from matrix.ground.catalog.failure import Expectation, Failure
from matrix.ground.catalog.stack import (
    ABSENT,
    BASE,
    CALL_PAIRS,
    CUDA,
    DRIVER,
    MCORE,
    PYTHON,
    TE,
    TOOLKIT,
    TORCH,
    Stack,
    Value,
    component_named,
    component_title,
)
from matrix.ground.catalog.versions import parse

FRAMEWORK: Final = "framework"  # the axis of --for
RUN: Final = re.compile(r"\brun (?:with|on)\b")  # in the reason of a rule: its evidence is a run
Chosen = Mapping[str, Candidate]  # by axis


@dataclass(frozen=True)
class Rejection:
    """Why a set of releases is not possible; `axes` are those that decide it, `evidence` how that is known.

    `failure` is the id of the catalog's failure, "" for another rule. Where it is not `certain`, an option decides it.
    """

    text: str
    axes: frozenset[str]
    evidence: str = "read"
    failure: str = ""
    certain: bool = True


def axis_of(component: str) -> str:
    """Return the axis that fixes a component: torch for its CUDA."""
    return TORCH if component in LIBRARIES else component


def stack_of(wishes: Wishes, chosen: Chosen) -> Stack:
    """Return the stack of a set: without an image and a toolkit, CUDA from torch's wheels."""
    values: dict[str, Value] = {BASE: ABSENT, TOOLKIT: ABSENT, **wishes.given}
    values |= {name: ABSENT for name, wish in wishes.by_component.items() if wish.absent}
    for candidate in chosen.values():
        values |= {name: version or ABSENT for name, version in candidate.fixes.items()}
    return Stack(values)


class Rules:
    """Judges sets of releases; `recorded` are the facts, `wishes` what is given and the framework."""

    def __init__(self, recorded: Recorded, wishes: Wishes) -> None:
        self.recorded, self.wishes = recorded, wishes
        self._calls: dict[tuple[str, str, str, str], str] = {}

    def rejection(self, chosen: Chosen, axis: str, *, certain: bool = False) -> Rejection | None:
        """Return why the release on `axis` does not go with the others that are chosen so far, None where it does.

        With `certain`, a failure that an option decides is no reason, although its entry is unfit.
        """
        rejections = self.rejections(chosen, axis)
        return next((rejection for rejection in rejections if rejection.certain or not certain), None)

    def rejections(self, chosen: Chosen, axis: str) -> Iterator[Rejection]:
        """Yield every reason against the release on `axis`."""
        stack = stack_of(self.wishes, chosen)
        yield from self._files(chosen, axis)
        yield from self._declared(chosen, stack, axis)
        for clash in clashes(self.recorded.catalog, UserStack(stack)):
            yield Rejection(clash.text, self._involved(chosen, _components_of(clash.text, stack)))
        changed = chosen[axis].fixes.keys()
        for failure, components in self._failures:
            ruling = failure.ruling(stack) if components & changed else None
            if not ruling or ruling.expectation is not Expectation.BROKEN:
                continue
            reached = failure.reach(stack, None)
            if reached.certain or failure.unfit:
                reason = ruling.rule.reason if ruling.rule else ""
                evidence = "run" if RUN.search(reason) else "read"
                costs = "" if reached.certain else f": fails {' '.join(reached.needs.split())}"
                text = f"{failure.id}: {failure.title}; {reason}{costs}"
                involved = self._involved(chosen, components)
                yield Rejection(text, involved, evidence, str(failure.id), reached.certain)
        yield from self._breaking_calls(chosen, stack, axis)

    @cached_property
    def _failures(self) -> list[tuple[Failure, frozenset[str]]]:
        """The failures with the components that decide them."""
        return [
            (
                entry,
                frozenset(
                    name for clause in (*entry.affected, *entry.works, *entry.reached_by) for name in clause.components
                ),
            )
            for entry in self.recorded.catalog.failures
        ]

    def _involved(self, chosen: Chosen, components: frozenset[str]) -> frozenset[str]:
        return frozenset({axis_of(name) for name in components} & {*chosen, *self.wishes.given})

    def _files(self, chosen: Chosen, axis: str) -> Iterator[Rejection]:
        """Yield the releases without a file for the Python, and without Transformer Engine's library for the CUDA."""
        python = chosen.get(PYTHON)
        for name, candidate in chosen.items() if axis == PYTHON else [(axis, chosen[axis])]:
            release = self.recorded.distributions.of(name, candidate.version)
            if python and release and not self._available(release, python.version):
                text = f"{component_title(name)} {candidate.version} has no file for Python {python.version}"
                yield Rejection(text, frozenset({name, PYTHON}), "declared")
        if axis in (TE, TORCH) and {TE, TORCH} <= chosen.keys():
            cuda, version = chosen[TORCH].fixes.get(CUDA, ""), chosen[TE].version
            if not cuda:
                yield Rejection("Transformer Engine needs CUDA", frozenset({TE, TORCH}))
            elif not self.recorded.distributions.of(cuda_package(cuda), version):
                text = f"Transformer Engine {version} has no library for CUDA {parse(cuda).major} in the index"
                yield Rejection(text, frozenset({TE, TORCH}), "declared")

    def _available(self, release: IndexedRelease, python: str) -> bool:
        """Return whether a release can be installed; the source of one that has wheels counts for a Python wished."""
        if not release.has_python(python):
            return False
        return PYTHON in self.wishes.by_component or not release.wheel or release.has_wheel(python, self.wishes.machine)

    def _declared(self, chosen: Chosen, stack: Stack, axis: str) -> Iterator[Rejection]:
        """Yield the declared ranges that exclude a version of the set."""
        for owner, release, extras in self.declaring(chosen):
            for name, limits in release.ranges(_python(chosen), extras).items():
                component = component_named(name) or name
                version = stack.version(component)
                involved = frozenset({owner, axis_of(component)})
                if version and axis in (*involved, PYTHON) and not limits.contains(version, prereleases=True):
                    text = f"{release.package} {release.version} declares {name}{limits}, not {version}"
                    yield Rejection(text, involved, "declared")
                if not version and axis in (owner, PYTHON) and not self._has_file(name, limits, chosen.get(PYTHON)):
                    text = f"{release.package} {release.version} declares {name}{limits}, which has no file for Python"
                    yield Rejection(f"{text} {_python(chosen)}", frozenset({owner, PYTHON}), "declared")

    def _has_file(self, package: str, limits: SpecifierSet, python: Candidate | None) -> bool:
        """Return whether the index has a release in a range for a Python; True for a package that is not recorded."""
        releases = self.recorded.distributions.by_package.get(package)
        return not (python and releases) or any(
            limits.contains(version, prereleases=True) and self._available(release, python.version)
            for version, release in releases.items()
        )

    def declaring(self, chosen: Chosen) -> Iterator[tuple[str, IndexedRelease, tuple[str, ...]]]:
        """Yield (axis, release, extras) of the releases whose declared ranges count."""
        framework = self.wishes.framework
        if framework and (release := self.recorded.distributions.of(framework.name, framework.version)):
            yield FRAMEWORK, release, framework.extras
        for axis, candidate in chosen.items():
            if axis != TORCH and (release := self.recorded.distributions.of(axis, candidate.version)):
                yield axis, release, ()

    def _breaking_calls(self, chosen: Chosen, stack: Stack, axis: str) -> Iterator[Rejection]:
        for pair in CALL_PAIRS:
            sides = (pair.consumer, pair.provider)
            if axis not in sides or not all(stack.version(side) for side in sides):
                continue
            key = (*sides, str(stack[sides[0]]), str(stack[sides[1]]))
            if key not in self._calls:
                calls, _ = calls_of(pair, self.recorded.catalog, Stack({name: stack[name] for name in sides}), ())
                self._calls[key] = next((call.needs or "always" for call in calls if call.certain), "")
            if self._calls[key]:
                text = f"calls of {component_title(sides[0])} {key[2]} into {component_title(sides[1])} {key[3]} break"
                yield Rejection(f"{text}: {self._calls[key]}", frozenset(sides))


def _python(chosen: Chosen) -> str:
    return chosen[PYTHON].version if PYTHON in chosen else "3.12"


def _components_of(text: str, stack: Stack) -> frozenset[str]:
    """Return the components that a clash of parts is about; every one where its text names none."""
    if text.startswith("driver "):
        return frozenset({DRIVER, CUDA})
    if text.startswith("megatron-core "):
        named = [name for name in stack if f"declares {name}" in text]
        return frozenset({MCORE, *(named or [PYTHON])})
    return frozenset(stack)
