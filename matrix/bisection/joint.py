"""Two stacks of which one works: which of the packages that differ carries the failure, then which version of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from matrix.bisection import report
from matrix.bisection.attribution import Attribution, Carrier, Packages, WrongStackError, attribute
from matrix.bisection.axes import AxisName, Side, Subject, releases, side_of
from matrix.bisection.noise import Seen
from matrix.bisection.probing import line_of
from matrix.bisection.report import BisectionSummary
from matrix.bisection.search import Plan, ResultKind
from matrix.bisection.session import Bisection, BisectionSession, bisect, why
from matrix.catalog.cell import parse_cell_id
from matrix.catalog.failure import Axis, Level, Package
from matrix.catalog.model import Catalog, Container, ReaderBase
from matrix.catalog.versions import NONE
from matrix.errors import MatrixError
from matrix.planning.planned import Planned
from matrix.verdicts.record import Record

BASE = AxisName.TORCH.value  # the package of a stack that its base brings


@dataclass(frozen=True)
class BisectionStack:
    """One of the two: `base` provides its torch, and the sides are laid over it."""

    base: str
    torch: str
    mcore: Side
    te: Side
    driver: str
    notes: tuple[str, ...] = ()

    def shown(self, package: str) -> str:
        """Return the version of a package as a person knows it."""
        return str(getattr(self, package))


@dataclass(frozen=True)
class Joint:
    """What was found: the attribution, and what a bisection inside each guilty package came to."""

    subject: Subject
    good: BisectionStack
    bad: BisectionStack
    attribution: Attribution
    inside: Mapping[str, Bisection]
    records: Mapping[Packages, Record]
    lines: Mapping[Packages, str]
    ran: int
    seconds: float
    notes: tuple[str, ...]


def stack_of(catalog: Catalog, text: str, mcore: Side, te: Side, lacks: Callable[[str], str]) -> BisectionStack:
    """Return the stack that BASE or BASE/mcore-V/te-V/driver-V names; what it leaves open is `mcore` and `te`.

    An image that can't run here (`lacks` says why) is stood for by its twin. Raises MatrixError.
    """
    named = parse_cell_id(text) if "/mcore-" in text else {"base": text, "mcore": NONE, "te": NONE, "driver": NONE}
    base = catalog.base(named["base"])
    own_core = side_of("" if named["mcore"] == NONE else named["mcore"], Package.MCORE)
    own_te = side_of("" if named["te"] == NONE else named["te"], Package.TE)
    core, engine = (own if own.version != NONE else given for own, given in ((own_core, mcore), (own_te, te)))
    if isinstance(base, ReaderBase):
        return BisectionStack(base.id, NONE, core, engine, named["driver"])
    if not isinstance(base, Container):
        return BisectionStack(base.id, getattr(base, "torch", None) or NONE, core, engine, named["driver"])
    engine = engine if engine.version != NONE else Side(base.te or NONE)
    core = core if core.version != NONE else Side(base.megatron_core or NONE)
    twin, lack = catalog.twin(base), lacks(base.id)
    if lack and twin:
        note = f"{base.id} is stood for by its twin {twin.id}: {lack}"
        return BisectionStack(twin.id, twin.torch, core, engine, named["driver"], (note,))
    return BisectionStack(base.id, base.torch or NONE, core, engine, named["driver"])


def differing(subject: Subject, good: BisectionStack, bad: BisectionStack) -> tuple[list[str], tuple[str, ...]]:
    """Return the packages that the two stacks have at different versions, and what is said of those left alone."""
    packages = [name.value for name in (AxisName.TORCH, AxisName.MCORE, AxisName.TE, AxisName.DRIVER)]
    differ = [name for name in packages if good.shown(name) != bad.shown(name)]
    if "te" in differ and Axis.TE not in subject.failure.axes:
        differ.remove("te")
        return differ, (f"Transformer Engine plays no part in {subject.failure.id} by the catalog: it was left out",)
    return differ, ()


def mixture(subject: Subject, good: BisectionStack, bad: BisectionStack, taken: Packages) -> Subject:
    """Return the subject in which `taken` comes from the bad stack and all else from the good one."""
    side = {name: bad if name in taken else good for name in (one.value for one in AxisName)}
    base = subject.base if subject.level is Level.CONTRACT else side[BASE].base
    te = side["te"].te if Axis.TE in subject.failure.axes else Side()
    return replace(subject, base=base, mcore=side["mcore"].mcore, te=te, driver=side["driver"].driver)


def jointly(
    subject: Subject,
    good: BisectionStack,
    bad: BisectionStack,
    plan: Plan,
    inquiry: BisectionSession,
    cheap: Callable[[Planned, BisectionSession], bool],
) -> Joint:
    """Attribute the failure, then bisect inside each guilty package. Raises MatrixError when an end is not as said."""
    packages, notes = differing(subject, good, bad)
    asked: dict[Packages, Planned] = {}

    def probe(mixtures: Sequence[Packages]) -> Iterable[Seen]:
        asked.update({taken: mixture(subject, good, bad, taken).planned() for taken in mixtures})
        labels = [shown(good, bad, packages, taken) for taken in mixtures]
        # Shares of the error that sum up to less than all of it, however many mixtures are asked.
        error = (1 - plan.confidence) / (len(asked) * (len(asked) + 1))
        return inquiry.settled([asked[taken] for taken in mixtures], labels, plan.noise, error)

    before, spent = inquiry.ran, inquiry.seconds
    try:
        told = attribute(packages, probe)
    except WrongStackError as error:
        record = inquiry.records[asked[error.taken].key][-1]
        raise MatrixError(
            f"the {'bad' if error.taken else 'good'} stack is not {'bad' if error.taken else 'good'}",
            where=shown(good, bad, packages, error.taken), got=f"{error.seen.value}: {why(record)}",
            fix=f"nothing was attributed; look at it: {line_of(subject.failure, asked[error.taken])}",
        ) from None  # fmt: skip
    inside: dict[str, Bisection] = {}
    said = [*good.notes, *bad.notes, *notes]
    for carrier in told.carriers:
        for package in sorted(carrier.packages):
            axis = AxisName(package)
            around = mixture(subject, good, bad, carrier.packages)
            if subject.level is Level.CONTRACT and axis is AxisName.TORCH:
                continue
            try:
                made, swapped = releases(around, axis, good.shown(package), bad.shown(package))
                old = Seen.BAD if swapped else Seen.GOOD
                inside[package] = bisect(around, made, old, plan, inquiry, cheap=lambda item: cheap(item, inquiry))
            except MatrixError as error:
                said.append(f"{package} was not bisected by release: {error.brief}")
    return Joint(
        subject, good, bad, told, inside,
        {taken: inquiry.records[item.key][-1] for taken, item in asked.items()},
        {taken: line_of(subject.failure, item) for taken, item in asked.items()},
        inquiry.ran - before, inquiry.seconds - spent, tuple(said),
    )  # fmt: skip


def shown(good: BisectionStack, bad: BisectionStack, packages: Sequence[str], taken: Packages) -> str:
    """Return a mixture in words: every package that differs, and its version."""
    return ", ".join(f"{name} {(bad if name in taken else good).shown(name)}" for name in packages)


@dataclass(frozen=True)
class MixtureSummary:
    """A mixture that was probed: what comes from the bad stack, and what was seen."""

    mixture: str
    from_bad: Packages
    seen: Seen
    why: str
    reproduce: str

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**vars(self), "from_bad": sorted(self.from_bad), "seen": self.seen.value}


@dataclass(frozen=True)
class JointSummary:
    """An attribution as people and programs read it.

    Each of `carriers` breaks the stack on its own; `differ` holds the good and the bad version of each package.
    """

    carriers: tuple[Carrier, ...]
    failure: str
    case: str
    level: Level
    differ: Mapping[str, tuple[str, str]]
    probes: tuple[MixtureSummary, ...]
    inside: Mapping[str, BisectionSummary]
    ran: int
    seconds: float
    notes: tuple[str, ...]

    @property
    def ambiguous(self) -> bool:
        """Say whether a carrier holds packages that may play no part."""
        return any(carrier.doubtful for carrier in self.carriers)

    @property
    def answer(self) -> list[str] | None:
        """Return the guilty packages, None where they are not known."""
        return None if self.ambiguous else sorted(frozenset().union(*(one.packages for one in self.carriers)))

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "answer": self.answer,
            "kind": ResultKind.AMBIGUOUS.value if self.ambiguous else "packages",
            "carriers": [
                {"packages": sorted(one.packages), "not_told_apart": sorted(one.doubtful)} for one in self.carriers
            ],
            "failure": self.failure,
            "case": self.case,
            "level": self.level.value,
            "differ": {name: list(versions) for name, versions in self.differ.items()},
            "probes": [probe.to_json() for probe in self.probes],
            "inside": {package: found.to_json() for package, found in self.inside.items()},
            "cost": {"ran": self.ran, "seconds": round(self.seconds, 3)},
            "notes": list(self.notes),
        }


def summarize(found: Joint) -> JointSummary:
    """Return the whole attribution for people and programs."""
    packages = differing(found.subject, found.good, found.bad)[0]
    return JointSummary(
        carriers=tuple(sorted(found.attribution.carriers, key=lambda carrier: sorted(carrier.packages))),
        failure=found.subject.failure.id,
        case=found.subject.case.name,
        level=found.subject.level,
        differ={name: (found.good.shown(name), found.bad.shown(name)) for name in packages},
        probes=tuple(
            MixtureSummary(
                shown(found.good, found.bad, packages, taken),
                taken,
                seen,
                why(found.records[taken]),
                found.lines[taken],
            )
            for taken, seen in found.attribution.asked.items()
        ),
        inside={package: report.summarize(inside) for package, inside in found.inside.items()},
        ran=found.ran,
        seconds=found.seconds,
        notes=found.notes,
    )


def render(found: JointSummary, page: str) -> str:
    """Return the summary for a person at a terminal."""
    lines = [headline(found)]
    lines += [f"  {name}: {good} -> {bad}" for name, (good, bad) in found.differ.items()]
    for carrier in found.carriers:
        if carrier.doubtful:
            lines.append(f"  no mixture could tell whether it takes {' and '.join(sorted(carrier.doubtful))}")
    lines += [f"  in {package}: {report.headline(inside)}" for package, inside in found.inside.items()]
    lines.append(f"  cost: {len(found.probes)} mixtures, {found.ran} run now, {found.seconds:.1f} s")
    lines += [f"  note: {note}" for note in found.notes]
    lines += [f"  {one.seen.value + ':':6} {one.mixture}\n         {one.reproduce}" for one in found.probes]
    return "\n".join([*lines, f"  page: {page}"])


def headline(found: JointSummary) -> str:
    """Return the answer in one line."""
    sets = [" and ".join(sorted(carrier.packages)) for carrier in found.carriers]
    joined = ", and on its own ".join(sets)
    return f"{'ambiguous, at most' if found.ambiguous else 'guilty'}: {joined}"
