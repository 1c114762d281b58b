"""Two stacks, one of them good: attribute the failure to the packages that differ, then bisect their versions.

Some packages can change one by one, the others only together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.machine import PythonEnvironment
from matrix.ground.catalog.model import Catalog, Container, Wheels
from matrix.ground.catalog.stack import (
    ABSENT,
    BASE,
    DECIDED,
    DRIVER,
    MCORE,
    NAMED,
    NOTHING,
    PYTHON,
    TE,
    TORCH,
    WRITER,
    Cell,
    Stack,
    component_named,
    components,
    parse_cell_id,
)
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.planned import Planned
from matrix.ground.verdicts.record import Record
from matrix.prove.bisection.axes import SOURCED, Clone, Subject, axis_word, read_package, releases
from matrix.prove.bisection.commits import Searcher, of_signatures
from matrix.prove.bisection.noise import ProbeResult
from matrix.prove.bisection.probe_session import Bisection, BisectionSession, bisect, line_of, why
from matrix.prove.bisection.search import Attribution, Packages, Plan, WrongStackError, attribute
from matrix.read import package_source

ENVIRONMENT: Final = "environment"  # what is left of two environments of Python besides the packages that can change
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


COSTLY: Final = (TORCH, BASE, ENVIRONMENT, PYTHON)  # a mixture with another one needs an environment of its own
AXES: Final = (TORCH, MCORE, TE, DRIVER)  # the components that a stack names, and what its base is known for
Contents = Callable[[str], Mapping[str, str]]  # the packages of a base by component, with the minor of its Python


def cataloged(catalog: Catalog) -> Contents:
    """Return what the catalog knows that its bases contain."""
    return lambda base: catalog.cell(base).stack.versions


def contents_of(catalog: Catalog, installed: Callable[[str], PythonEnvironment | None], base: str) -> Mapping[str, str]:
    """Return the packages of a base by component, with the minor of its Python; of one that is not made, the pins."""
    environment = installed(base)
    if environment is None or not environment.packages:
        return cataloged(catalog)(base)
    packages = {component_named(name, (name,)): version for name, version in environment.packages.items()}
    return {**packages, PYTHON: environment.minor}


@dataclass(frozen=True)
class StackPair:
    """A case on a good and on a bad stack, and on each mixture of them; `replaced` names twins that stand for images.

    `reader` is the base of every mixture at level contract. What `contents` says of a base that is not made yet is
    only what the catalog pins: `resolved` compares what is installed.
    """

    good: Subject
    bad: Subject
    reader: str = ""
    replaced: tuple[str, ...] = ()
    contents: Contents | None = None

    @cached_property
    def differences(self) -> Differences:
        """Compare what both bases contain, with the packages that the stacks lay over them."""
        sides = self.good, self.bad
        if self.reader or (self.good.base == self.bad.base and not any(map(self._packages, sides))):
            return Differences({}, {})
        stacks = [{**self._contents(side.base), **self._packages(side)} for side in sides]
        for stack in stacks:
            for name in (*AXES, *WRITER):
                stack.pop(name, None)
        return differences(*stacks, separable=self.separable)

    @property
    def separable(self) -> bool:
        """Return whether both bases are environments of Python, whose packages are known."""
        return all(isinstance(side.catalog.find_base(side.base), Wheels) for side in (self.good, self.bad))

    def _contents(self, base: str) -> Mapping[str, str]:
        return (self.contents or cataloged(self.good.catalog))(base)

    @staticmethod
    def _packages(side: Subject) -> dict[str, str]:
        """Return the packages that a stack lays over its base besides those under test."""
        return {name: version for name, version in side.stack.versions.items() if name not in (BASE, *AXES, *WRITER)}

    def versions(self, component: str) -> tuple[str, str]:
        """Return the good and the bad version or source of a component, as text."""
        if component in self.differences.alone:
            return self.differences.alone[component]
        component = BASE if component == ENVIRONMENT else component
        return self.good.text(component), self.bad.text(component)

    @cached_property
    def differing(self) -> list[str]:
        """Return the components that differ, also where the failure does not depend on them."""
        stated = [component for component in AXES if len({*self.versions(component)}) > 1]
        bases = [self.good.base, self.bad.base]
        if TORCH not in stated and bases[0] != bases[1] and PYTHON not in self.differences.alone and not self.reader:
            stated = [ENVIRONMENT if self.separable else BASE, *stated]
        return [*stated, *self.differences.alone]

    @property
    def components(self) -> list[str]:
        """Return the components that differ, without a Transformer Engine that the failure does not use."""
        return [name for name in self.differing if name != TE or TE in self.good.failure.axes]

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the replaced images, and the components that are left out or do not change alone."""
        left_out = f"Transformer Engine is left out: the catalog gives {self.good.failure.id} no te axis"
        moved = ", ".join(f"{name} {good} -> {bad}" for name, (good, bad) in self.differences.together.items())
        base = axis_word(next((name for name in COSTLY if name in self.components), BASE))
        return (
            *self.replaced,
            *([left_out] if self.components != self.differing else []),
            *([f"changed with {base}: {moved}"] if moved else []),
        )

    def mixture(self, taken: Packages, *, everywhere: bool = False) -> Subject | None:
        """Return the subject with `taken` from the bad stack and everything else from the good one.

        A package is laid over the base unless that has its version; `everywhere` lays all that differ, for points with
        other bases. None where the catalog has no such base: a torch on a Python that it has no wheel for.
        """
        mixed = self.good if TE in self.good.failure.axes else self.good.with_(TE, ABSENT)
        for component in taken & {MCORE, TE, DRIVER}:
            mixed = mixed.with_(component, self.bad.stack[component], self.bad.sources.get(component, ""))
        if self.reader:
            return mixed.with_(BASE, self.reader)
        base: str | None = (self.bad if taken & {TORCH, BASE, ENVIRONMENT} else self.good).base
        wanted = {name: pair[name in taken] for name, pair in self.differences.alone.items()}
        if base and (python := wanted.pop(PYTHON, "")) and python != self._contents(base).get(PYTHON):
            base = self.good.catalog.base_on(base, python)
        if base is None:
            return None
        mixed = mixed.with_(BASE, base)
        contents = self._contents(base)
        for name, version in wanted.items():
            mixed = mixed.with_(name, version if everywhere or contents.get(name) != version else ABSENT)
        return mixed

    @property
    def table(self) -> list[str]:
        """Return the lines of what differs: each package that can change alone, and what changes with the base."""
        return [*(f"  {axis_word(name)}: {' -> '.join(self.versions(name))}" for name in self.components), *self.notes]

    @property
    def costly(self) -> Packages:
        """Return the components of which a mixture needs an environment of its own."""
        return frozenset(self.components) & {*COSTLY}

    def base_along(self, component: str, taken: Packages, base: str) -> str:
        """Return the base of a point along a component: that of a torch has the Python of the mixture."""
        pair = self.differences.alone.get(PYTHON)
        if component != TORCH or not pair:
            return base
        return self.good.catalog.base_on(base, pair[PYTHON in taken]) or base

    def label(self, taken: Packages) -> str:
        """Return a mixture as text: every component that differs, and its version."""
        return ", ".join(f"{axis_word(name)} {self.versions(name)[name in taken]}" for name in self.components)


def sources_in(text: str) -> tuple[str, dict[str, str]]:
    """Return the cell or the base that a stack names, and the sources of its packages that are in none of them.

    "torch-2.13.0/mcore-none/te-none/driver-none mcore=/src/Megatron-LM@main" has one.
    """
    cell, *words = re.split(rf" (?=(?:{'|'.join(SOURCED)})=/)", text)
    return cell, {SOURCED[name]: source for name, _, source in (word.partition("=") for word in words)}


def cell_named(catalog: Catalog, text: str) -> Cell:
    """Return the cell that a text names: a cell's id, or that of a base. Raises MatrixError."""
    text, sources = sources_in(text)
    parts: dict[str, Any] = parse_cell_id(text) if "/mcore-" in text else {"base": catalog.base(text).id}
    cell = catalog.cell(**parts)
    return cell.with_({component: read_package(source, component)[0] for component, source in sources.items()})


def cell_for(catalog: Catalog, stack: Stack, word: str) -> Cell:
    """Return the cell that runs a stack: the image or the base with its torch, and its packages laid over it."""
    torch, python = stack.version(TORCH), stack.version(PYTHON)
    base = stack.version(BASE) or next((base.id for base in catalog.standard if base.torch == torch), "")
    if not base:
        torches = ", ".join(wheels.torch for wheels in catalog.standard)
        raise MatrixError("no base has this torch", where=word, got=torch or "none", expected=torches)
    if python and not stack.version(BASE):
        base = catalog.base_on(base, python) or base
    packages = [name for name in stack.versions if name not in DECIDED and not follows(name)]
    values = {name: stack.version(name) or ABSENT for name in (*NAMED, *packages)}
    return catalog.cell(base, values, packages)


def read_pair(
    subject: Subject, good: str, bad: str, lacks: Callable[[str], str], contents: Contents | None = None
) -> StackPair:
    """Return the pair of two stacks, each BASE or BASE/mcore-V/te-V/driver-V, with sources.

    The packages that a text does not name are the subject's or, of an image, its own. The twin replaces an image that
    can't run on this machine (`lacks` returns the reason). Raises MatrixError.
    """
    (good_subject, good_note), (bad_subject, bad_note) = (_read_stack(subject, text, lacks) for text in (good, bad))
    reader = subject.base if subject.level is Level.CONTRACT else ""
    return StackPair(good_subject, bad_subject, reader, tuple(note for note in (good_note, bad_note) if note), contents)


def _read_stack(subject: Subject, text: str, lacks: Callable[[str], str]) -> tuple[Subject, str]:
    """Return the subject on the stack that `text` names, and which twin replaces its image ("" for none)."""
    text, sources = sources_in(text)
    cell: dict[str, Any] = parse_cell_id(text) if "/mcore-" in text else {"base": text, "values": {}}
    base = subject.catalog.base(cell["base"])
    image = base.contents() if isinstance(base, Container) else NOTHING
    on_stack = subject.with_(BASE, base.id).with_(DRIVER, cell["values"].get(DRIVER, ABSENT))
    for package in (MCORE, TE):
        version = cell["values"].get(package, ABSENT)
        if version is not ABSENT:
            on_stack = on_stack.with_(package, version)
        elif on_stack.stack[package] is ABSENT:
            on_stack = on_stack.with_(package, image.version(package) or ABSENT)
    for package in cell.get("packages", ()):
        on_stack = on_stack.with_(package, cell["values"][package])
    for package, source in sources.items():
        on_stack = on_stack.with_(package, *read_package(source, package))
    twin = subject.catalog.twin(base) if isinstance(base, Container) else None
    lack = lacks(base.id) if twin else ""
    if not (twin and lack):
        return on_stack, ""
    return on_stack.with_(BASE, twin.id), f"the twin {twin.id} replaces {base.id}: {lack}"


@dataclass(frozen=True)
class Comparison:
    """Two stacks, the packages that carry the failure, and by mixture its record and the command to repeat it.

    `reasons` says why a mixture has its result; one that can't be made has no record and no command.
    """

    stacks: StackPair
    attribution: Attribution
    records: Mapping[Packages, Record]
    lines: Mapping[Packages, str]
    reasons: Mapping[Packages, str]


@dataclass(frozen=True)
class BisectionAnswer:
    """The answer to the question of a bisection: the search along each axis, by its component.

    Without a `comparison` of two stacks it is the one search of the question; with one, those in the guilty packages.
    """

    subject: Subject
    bisections: Mapping[str, Bisection]
    comparison: Comparison | None = None
    notes: tuple[str, ...] = field(default=())


def bisect_stacks(stacks: StackPair, plan: Plan, session: BisectionSession) -> BisectionAnswer:
    """Attribute the failure, then bisect inside each guilty package.

    Raises MatrixError when the good stack is not good, or the bad stack is not bad.
    """
    subject = stacks.good
    comparison = compared(stacks, plan, session)
    stacks = comparison.stacks
    bisections: dict[str, Bisection] = {}
    notes = [*stacks.notes]
    for carrier in comparison.attribution.carriers:
        around = stacks.mixture(carrier.packages, everywhere=True)
        for component in sorted(carrier.packages, key=axis_word):
            read_only = subject.level is Level.CONTRACT and component == TORCH
            if around is None or read_only or component == ENVIRONMENT:
                continue
            try:
                along = partial(stacks.base_along, component, carrier.packages)
                if searched := search_commits(around, component, stacks.versions(component), plan, session):
                    bisections[component] = searched
                    continue
                stretch, swapped = releases(around, component, *stacks.versions(component), along)
                old = ProbeResult.BAD if swapped else ProbeResult.GOOD
                bisections[component] = bisect(around, stretch, old, plan, session, cheap=session.is_cheap)
            except MatrixError as error:
                notes.append(f"{axis_word(component)} was not bisected by release: {error.brief}")
    return BisectionAnswer(subject, bisections, comparison, tuple(notes))


def search_commits(
    around: Subject, component: str, ends: tuple[str, str], plan: Plan, session: BisectionSession
) -> Bisection | None:
    """Return the search between a good and a bad revision of one clone, None where the ends are none."""
    if component not in SOURCED.values() or not all("@" in end for end in ends):
        return None
    good, bad = (package_source.parse(end, component) for end in ends)
    if good.location != bad.location:
        return None
    with Clone(good.location, component) as clone:
        suspects = of_signatures(around.failure.signature, clone)
        searcher = Searcher(around, component, clone, plan, session, suspects)
        return searcher.between(clone.commit(good.revision), clone.commit(bad.revision))


def compared(stacks: StackPair, plan: Plan, session: BisectionSession) -> Comparison:
    """Return the packages that carry the failure. Raises MatrixError for a stack that is not good or bad as stated.

    Both stacks run first: only then are their environments there to be compared.
    """
    subject = stacks.good
    cases: dict[Packages, Planned | None] = {}

    def probe(mixtures: Sequence[Packages]) -> Iterable[ProbeResult]:
        mixed = {mixture: stacks.mixture(mixture) for mixture in mixtures}
        cases.update({mixture: side.planned() if side else None for mixture, side in mixed.items()})
        possible = {mixture: item for mixture in mixtures if (item := cases[mixture])}
        # Shares of the error whose sum stays below the whole, regardless of the number of mixtures.
        error = (1 - plan.confidence) / (len(cases) * (len(cases) + 1))
        results = session.settled([*possible.values()], [*map(stacks.label, possible)], plan.noise, error)
        result_of = dict(zip(possible, results, strict=True))
        return [result_of.get(mixture, ProbeResult.SKIP) for mixture in mixtures]

    probe([frozenset[str](), frozenset(stacks.components)])
    stacks = replace(stacks)  # compares again, with what is installed now
    session.say("\n".join(["the stacks differ in:", *stacks.table]))
    try:
        attribution = attribute(stacks.components, probe, stacks.costly)
    except WrongStackError as error:
        kind, item = "bad" if error.taken else "good", cases[error.taken]
        assert item
        raise MatrixError(
            f"the {kind} stack is not {kind}",
            where=stacks.label(error.taken),
            got=f"{error.seen.value}: {why(session.records[item.key][-1])}",
            fix=f"nothing was attributed; reproduce it: {line_of(subject, item)}",
        ) from None
    probed = {mixture: item for mixture in attribution.probed if (item := cases[mixture])}
    records = {mixture: session.records[item.key][-1] for mixture, item in probed.items()}
    impossible = dict.fromkeys(attribution.probed, "the catalog has no wheel of this torch for this Python")
    return Comparison(
        stacks,
        attribution,
        records,
        {mixture: line_of(subject, item) for mixture, item in probed.items()},
        {**impossible, **{mixture: why(record) for mixture, record in records.items()}},
    )
