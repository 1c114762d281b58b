"""Two stacks, one of them good: attribute the failure to the packages that differ, then bisect their versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from matrix.bisection.attribution import Attribution, Packages, WrongStackError, attribute
from matrix.bisection.axes import WORDS, AxisName, Side, Subject, releases, side_of
from matrix.bisection.noise import ProbeResult
from matrix.bisection.probe_session import Bisection, BisectionSession, bisect, line_of, why
from matrix.bisection.search import Plan
from matrix.catalog.cell import parse_cell_id
from matrix.catalog.failure import Level
from matrix.catalog.model import Catalog, Container, ReaderBase
from matrix.catalog.stack import ABSENT, DRIVER, MCORE, TE, short
from matrix.catalog.versions import NONE
from matrix.errors import MatrixError
from matrix.verdicts.planned import Planned
from matrix.verdicts.record import Record

BASE: Final = str(AxisName.TORCH)  # the package that a stack's base provides


@dataclass(frozen=True)
class BisectionStack:
    """One of the two stacks: `base` provides its torch, and the sides are laid over it."""

    base: str
    torch: str
    mcore: Side
    te: Side
    driver: str
    notes: tuple[str, ...] = ()


def stack_of(catalog: Catalog, text: str, mcore: Side, te: Side, lacks: Callable[[str], str]) -> BisectionStack:
    """Return the stack that BASE or BASE/mcore-V/te-V/driver-V names; `mcore` and `te` are the defaults.

    The twin replaces an image that can't run on this machine (`lacks` returns the reason). Raises MatrixError.
    """
    parsed: dict[str, Any] = parse_cell_id(text) if "/mcore-" in text else {"base": text, "values": {}}
    values = parsed["values"]
    parts = {"base": parsed["base"], **{short(name): str(values.get(name, ABSENT)) for name in (MCORE, TE, DRIVER)}}
    base = catalog.base(parts["base"])
    sides = []
    for package, default in ((MCORE, mcore), (TE, te)):
        version = parts[short(package)]
        side = side_of("" if version == NONE else version, package)
        sides.append(side if side.version != NONE else default)
    core, engine = sides
    if isinstance(base, ReaderBase):
        return BisectionStack(base.id, NONE, core, engine, parts["driver"])
    if not isinstance(base, Container):
        return BisectionStack(base.id, getattr(base, "torch", None) or NONE, core, engine, parts["driver"])
    engine = engine if engine.version != NONE else Side(base.te or NONE)
    core = core if core.version != NONE else Side(base.megatron_core or NONE)
    twin, lack = catalog.twin(base), lacks(base.id)
    if lack and twin:
        note = f"the twin {twin.id} replaces {base.id}: {lack}"
        return BisectionStack(twin.id, twin.torch, core, engine, parts["driver"], (note,))
    return BisectionStack(base.id, base.torch or NONE, core, engine, parts["driver"])


@dataclass(frozen=True)
class StackPair:
    """The good and the bad stack; `subject` is the case that runs on each mixture of them."""

    subject: Subject
    good: BisectionStack
    bad: BisectionStack

    def versions(self, package: str) -> tuple[str, str]:
        """Return the good and the bad version or source of a package, as text."""
        return str(getattr(self.good, package)), str(getattr(self.bad, package))

    @cached_property
    def differing(self) -> list[str]:
        """Return the packages whose versions differ, also where the failure does not depend on them."""
        packages = [str(axis) for axis in (AxisName.TORCH, AxisName.MCORE, AxisName.TE, AxisName.DRIVER)]
        return [name for name in packages if len({*self.versions(name)}) > 1]

    @property
    def packages(self) -> list[str]:
        """Return the packages whose versions differ, without a Transformer Engine that the failure does not use."""
        return [name for name in self.differing if name != "te" or TE in self.subject.failure.axes]

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the replaced images, and the packages that are left out."""
        left_out = f"Transformer Engine is left out: the catalog gives {self.subject.failure.id} no te axis"
        return (*self.good.notes, *self.bad.notes, *([left_out] if self.packages != self.differing else []))

    def mixture(self, taken: Packages) -> Subject:
        """Return the subject with `taken` from the bad stack and everything else from the good one."""
        side = {word: self.bad if word in taken else self.good for word in WORDS}
        base = self.subject.base if self.subject.level is Level.CONTRACT else side[BASE].base
        te = side["te"].te if TE in self.subject.failure.axes else Side()
        return replace(self.subject, base=base, mcore=side["mcore"].mcore, te=te, driver=side["driver"].driver)

    def label(self, taken: Packages) -> str:
        """Return a mixture as text: every package that differs, and its version."""
        return ", ".join(f"{name} {self.versions(name)[name in taken]}" for name in self.packages)


@dataclass(frozen=True)
class Comparison:
    """Two stacks, the packages that carry the failure, and by mixture its record and the command to repeat it."""

    stacks: StackPair
    attribution: Attribution
    records: Mapping[Packages, Record]
    lines: Mapping[Packages, str]


@dataclass(frozen=True)
class BisectionAnswer:
    """The answer to the question of a bisection: the search along each axis, by axis.

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
    subject = stacks.subject
    comparison = compared(stacks, plan, session)
    bisections: dict[str, Bisection] = {}
    notes = [*stacks.notes]
    for carrier in comparison.attribution.carriers:
        around = stacks.mixture(carrier.packages)
        for package in sorted(carrier.packages):
            axis = AxisName(package)
            if subject.level is Level.CONTRACT and axis == AxisName.TORCH:
                continue
            try:
                stretch, swapped = releases(around, axis, *stacks.versions(package))
                old = ProbeResult.BAD if swapped else ProbeResult.GOOD
                bisections[package] = bisect(
                    around, stretch, old, plan, session, cheap=lambda item: cheap(item, session)
                )
            except MatrixError as error:
                notes.append(f"{package} was not bisected by release: {error.brief}")
    return BisectionAnswer(subject, bisections, comparison, tuple(notes))


def compared(stacks: StackPair, plan: Plan, session: BisectionSession) -> Comparison:
    """Return the packages that carry the failure. Raises MatrixError for a stack that is not good or bad as stated."""
    subject = stacks.subject
    cases: dict[Packages, Planned] = {}

    def probe(mixtures: Sequence[Packages]) -> Iterable[ProbeResult]:
        cases.update({mixture: stacks.mixture(mixture).planned() for mixture in mixtures})
        # Shares of the error whose sum stays below the whole, regardless of the number of mixtures.
        error = (1 - plan.confidence) / (len(cases) * (len(cases) + 1))
        return session.settled(
            [cases[mixture] for mixture in mixtures], [*map(stacks.label, mixtures)], plan.noise, error
        )

    try:
        attribution = attribute(stacks.packages, probe)
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
