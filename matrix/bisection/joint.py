"""Two stacks, one of them good: attribute the failure to the packages that differ, then bisect their versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from matrix.bisection.attribution import Attribution, Packages, WrongStackError, attribute
from matrix.bisection.axes import Subject, axis_word, releases
from matrix.bisection.noise import ProbeResult
from matrix.bisection.probe_session import Bisection, BisectionSession, bisect, line_of, why
from matrix.bisection.search import Plan
from matrix.catalog.cell import parse_cell_id
from matrix.catalog.failure import Level
from matrix.catalog.model import Container
from matrix.catalog.stack import ABSENT, BASE, DRIVER, MCORE, NOTHING, TE, TORCH
from matrix.errors import MatrixError
from matrix.verdicts.planned import Planned
from matrix.verdicts.record import Record

AXES: Final = (TORCH, MCORE, TE, DRIVER)  # the components in which two stacks are compared


@dataclass(frozen=True)
class StackPair:
    """A case on a good and on a bad stack, and on each mixture of them; `replaced` names twins that stand for images.

    `reader` is the base of every mixture at level contract.
    """

    good: Subject
    bad: Subject
    reader: str = ""
    replaced: tuple[str, ...] = ()

    def versions(self, component: str) -> tuple[str, str]:
        """Return the good and the bad version or source of a component, as text."""
        return self.good.text(component), self.bad.text(component)

    @cached_property
    def differing(self) -> list[str]:
        """Return the components that differ, also where the failure does not depend on them."""
        return [component for component in AXES if len({*self.versions(component)}) > 1]

    @property
    def components(self) -> list[str]:
        """Return the components that differ, without a Transformer Engine that the failure does not use."""
        return [name for name in self.differing if name != TE or TE in self.good.failure.axes]

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the replaced images, and the components that are left out."""
        left_out = f"Transformer Engine is left out: the catalog gives {self.good.failure.id} no te axis"
        return (*self.replaced, *([left_out] if self.components != self.differing else []))

    def mixture(self, taken: Packages) -> Subject:
        """Return the subject with `taken` from the bad stack and everything else from the good one."""
        mixed = self.good if TE in self.good.failure.axes else self.good.with_(TE, ABSENT)
        for component in taken:
            varied = BASE if component == TORCH else component
            mixed = mixed.with_(varied, self.bad.stack[varied], self.bad.sources.get(varied, ""))
        return mixed.with_(BASE, self.reader) if self.reader else mixed

    def label(self, taken: Packages) -> str:
        """Return a mixture as text: every component that differs, and its version."""
        return ", ".join(f"{axis_word(name)} {self.versions(name)[name in taken]}" for name in self.components)


def read_pair(subject: Subject, good: str, bad: str, lacks: Callable[[str], str]) -> StackPair:
    """Return the pair of two stacks, each BASE or BASE/mcore-V/te-V/driver-V.

    The packages that a text does not name are the subject's or, of an image, its own. The twin replaces an image that
    can't run on this machine (`lacks` returns the reason). Raises MatrixError.
    """
    (good_subject, good_note), (bad_subject, bad_note) = (_read_stack(subject, text, lacks) for text in (good, bad))
    reader = subject.base if subject.level is Level.CONTRACT else ""
    return StackPair(good_subject, bad_subject, reader, tuple(note for note in (good_note, bad_note) if note))


def _read_stack(subject: Subject, text: str, lacks: Callable[[str], str]) -> tuple[Subject, str]:
    """Return the subject on the stack that `text` names, and which twin replaces its image ("" for none)."""
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
    twin = subject.catalog.twin(base) if isinstance(base, Container) else None
    lack = lacks(base.id) if twin else ""
    if not (twin and lack):
        return on_stack, ""
    return on_stack.with_(BASE, twin.id), f"the twin {twin.id} replaces {base.id}: {lack}"


@dataclass(frozen=True)
class Comparison:
    """Two stacks, the packages that carry the failure, and by mixture its record and the command to repeat it."""

    stacks: StackPair
    attribution: Attribution
    records: Mapping[Packages, Record]
    lines: Mapping[Packages, str]


@dataclass(frozen=True)
class BisectionAnswer:
    """The answer to the question of a bisection: the search along each axis, by its component.

    Without a `comparison` of two stacks it is the one search of the question; with one, those in the guilty packages.
    """

    subject: Subject
    bisections: Mapping[str, Bisection]
    comparison: Comparison | None = None
    notes: tuple[str, ...] = field(default=())


def jointly(
    stacks: StackPair, plan: Plan, session: BisectionSession, cheap: Callable[[Planned, BisectionSession], bool]
) -> BisectionAnswer:
    """Attribute the failure, then bisect inside each guilty package.

    Raises MatrixError when the good stack is not good, or the bad stack is not bad.
    """
    subject = stacks.good
    comparison = compared(stacks, plan, session)
    bisections: dict[str, Bisection] = {}
    notes = [*stacks.notes]
    for carrier in comparison.attribution.carriers:
        around = stacks.mixture(carrier.packages)
        for component in sorted(carrier.packages, key=axis_word):
            if subject.level is Level.CONTRACT and component == TORCH:
                continue
            try:
                stretch, swapped = releases(around, component, *stacks.versions(component))
                old = ProbeResult.BAD if swapped else ProbeResult.GOOD
                bisections[component] = bisect(
                    around, stretch, old, plan, session, cheap=lambda item: cheap(item, session)
                )
            except MatrixError as error:
                notes.append(f"{axis_word(component)} was not bisected by release: {error.brief}")
    return BisectionAnswer(subject, bisections, comparison, tuple(notes))


def compared(stacks: StackPair, plan: Plan, session: BisectionSession) -> Comparison:
    """Return the packages that carry the failure. Raises MatrixError for a stack that is not good or bad as stated."""
    subject = stacks.good
    cases: dict[Packages, Planned] = {}

    def probe(mixtures: Sequence[Packages]) -> Iterable[ProbeResult]:
        cases.update({mixture: stacks.mixture(mixture).planned() for mixture in mixtures})
        # Shares of the error whose sum stays below the whole, regardless of the number of mixtures.
        error = (1 - plan.confidence) / (len(cases) * (len(cases) + 1))
        return session.settled(
            [cases[mixture] for mixture in mixtures], [*map(stacks.label, mixtures)], plan.noise, error
        )

    try:
        attribution = attribute(stacks.components, probe)
    except WrongStackError as error:
        kind, item = "bad" if error.taken else "good", cases[error.taken]
        raise MatrixError(
            f"the {kind} stack is not {kind}",
            where=stacks.label(error.taken),
            got=f"{error.seen.value}: {why(session.records[item.key][-1])}",
            fix=f"nothing was attributed; reproduce it: {line_of(subject, item)}",
        ) from None
    return Comparison(
        stacks,
        attribution,
        {mixture: session.records[item.key][-1] for mixture, item in cases.items()},
        {mixture: line_of(subject, item) for mixture, item in cases.items()},
    )
