"""Two stacks, one of them good: attribute the failure to the packages that differ, then bisect their versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from matrix.bisection import report
from matrix.bisection.attribution import Attribution, Carrier, Packages, WrongStackError, attribute
from matrix.bisection.axes import AxisName, Side, Subject, releases, side_of
from matrix.bisection.noise import ProbeResult
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

BASE = AxisName.TORCH.value  # the package that a stack's base provides


@dataclass(frozen=True)
class BisectionStack:
    """One of the two stacks: `base` provides its torch, and the sides are laid over it."""

    base: str
    torch: str
    mcore: Side
    te: Side
    driver: str
    notes: tuple[str, ...] = ()

    def shown(self, package: str) -> str:
        """Return the version or source of a package, as text."""
        return str(getattr(self, package))


@dataclass(frozen=True)
class Joint:
    """The result: the attribution, and a bisection inside each guilty package."""

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
    """Return the stack that BASE or BASE/mcore-V/te-V/driver-V names; `mcore` and `te` are the defaults.

    The twin replaces an image that can't run on this machine (`lacks` returns the reason). Raises MatrixError.
    """
    named = parse_cell_id(text) if "/mcore-" in text else {"base": text, "mcore": NONE, "te": NONE, "driver": NONE}
    base = catalog.base(named["base"])
    own_core = side_of("" if named["mcore"] == NONE else named["mcore"], Package.MCORE)
    own_te = side_of("" if named["te"] == NONE else named["te"], Package.TE)
    core, engine = (own if own.version != NONE else default for own, default in ((own_core, mcore), (own_te, te)))
    if isinstance(base, ReaderBase):
        return BisectionStack(base.id, NONE, core, engine, named["driver"])
    if not isinstance(base, Container):
        return BisectionStack(base.id, getattr(base, "torch", None) or NONE, core, engine, named["driver"])
    engine = engine if engine.version != NONE else Side(base.te or NONE)
    core = core if core.version != NONE else Side(base.megatron_core or NONE)
    twin, lack = catalog.twin(base), lacks(base.id)
    if lack and twin:
        note = f"the twin {twin.id} replaces {base.id}: {lack}"
        return BisectionStack(twin.id, twin.torch, core, engine, named["driver"], (note,))
    return BisectionStack(base.id, base.torch or NONE, core, engine, named["driver"])


def differing(subject: Subject, good: BisectionStack, bad: BisectionStack) -> tuple[list[str], tuple[str, ...]]:
    """Return the packages whose versions differ, and a note for each such package that is left out."""
    packages = [name.value for name in (AxisName.TORCH, AxisName.MCORE, AxisName.TE, AxisName.DRIVER)]
    differ = [name for name in packages if good.shown(name) != bad.shown(name)]
    if "te" in differ and Axis.TE not in subject.failure.axes:
        differ.remove("te")
        return differ, (f"Transformer Engine is left out: the catalog gives {subject.failure.id} no te axis",)
    return differ, ()


def mixture(subject: Subject, good: BisectionStack, bad: BisectionStack, taken: Packages) -> Subject:
    """Return the subject with `taken` from the bad stack and everything else from the good one."""
    side = {name: bad if name in taken else good for name in (one.value for one in AxisName)}
    base = subject.base if subject.level is Level.CONTRACT else side[BASE].base
    te = side["te"].te if Axis.TE in subject.failure.axes else Side()
    return replace(subject, base=base, mcore=side["mcore"].mcore, te=te, driver=side["driver"].driver)


def jointly(
    subject: Subject,
    good: BisectionStack,
    bad: BisectionStack,
    plan: Plan,
    session: BisectionSession,
    cheap: Callable[[Planned, BisectionSession], bool],
) -> Joint:
    """Attribute the failure, then bisect inside each guilty package.

    Raises MatrixError when the good stack is not good, or the bad stack is not bad.
    """
    packages, notes = differing(subject, good, bad)
    cases: dict[Packages, Planned] = {}

    def probe(mixtures: Sequence[Packages]) -> Iterable[ProbeResult]:
        cases.update({taken: mixture(subject, good, bad, taken).planned() for taken in mixtures})
        labels = [shown(good, bad, packages, taken) for taken in mixtures]
        # Shares of the error whose sum stays below the whole, regardless of the number of mixtures.
        error = (1 - plan.confidence) / (len(cases) * (len(cases) + 1))
        return session.settled([cases[taken] for taken in mixtures], labels, plan.noise, error)

    before, spent = session.ran, session.seconds
    try:
        attribution = attribute(packages, probe)
    except WrongStackError as error:
        record = session.records[cases[error.taken].key][-1]
        raise MatrixError(
            f"the {'bad' if error.taken else 'good'} stack is not {'bad' if error.taken else 'good'}",
            where=shown(good, bad, packages, error.taken), got=f"{error.seen.value}: {why(record)}",
            fix=f"nothing was attributed; reproduce it: {line_of(subject.failure, cases[error.taken])}",
        ) from None  # fmt: skip
    inside: dict[str, Bisection] = {}
    all_notes = [*good.notes, *bad.notes, *notes]
    for carrier in attribution.carriers:
        for package in sorted(carrier.packages):
            axis = AxisName(package)
            around = mixture(subject, good, bad, carrier.packages)
            if subject.level is Level.CONTRACT and axis is AxisName.TORCH:
                continue
            try:
                made, swapped = releases(around, axis, good.shown(package), bad.shown(package))
                old = ProbeResult.BAD if swapped else ProbeResult.GOOD
                inside[package] = bisect(around, made, old, plan, session, cheap=lambda item: cheap(item, session))
            except MatrixError as error:
                all_notes.append(f"{package} was not bisected by release: {error.brief}")
    return Joint(
        subject, good, bad, attribution, inside,
        {taken: session.records[item.key][-1] for taken, item in cases.items()},
        {taken: line_of(subject.failure, item) for taken, item in cases.items()},
        session.ran - before, session.seconds - spent, tuple(all_notes),
    )  # fmt: skip


def shown(good: BisectionStack, bad: BisectionStack, packages: Sequence[str], taken: Packages) -> str:
    """Return a mixture as text: every package that differs, and its version."""
    return ", ".join(f"{name} {(bad if name in taken else good).shown(name)}" for name in packages)


@dataclass(frozen=True)
class MixtureSummary:
    """A mixture that was probed: its packages from the bad stack, the result and the reason."""

    mixture: str
    from_bad: Packages
    seen: ProbeResult
    why: str
    reproduce: str

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**vars(self), "from_bad": sorted(self.from_bad), "seen": self.seen.value}


@dataclass(frozen=True)
class JointSummary:
    """An attribution, ready to print, or to write as JSON or as a page.

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
        """Return whether a carrier holds doubtful packages, or the version of a guilty one is ambiguous."""
        return self.doubtful or any(found.ambiguous for found in self.inside.values())

    @property
    def doubtful(self) -> bool:
        """Return whether a carrier holds packages of which no mixture shows whether the failure needs them."""
        return any(carrier.doubtful for carrier in self.carriers)

    @property
    def answer(self) -> list[str] | None:
        """Return the guilty packages, None where they are ambiguous."""
        return None if self.doubtful else sorted(frozenset().union(*(one.packages for one in self.carriers)))

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "answer": self.answer,
            "kind": ResultKind.AMBIGUOUS.value if self.doubtful else "packages",
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
    """Return the summary of an attribution."""
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
            for taken, seen in found.attribution.probed.items()
        ),
        inside={package: report.summarize(inside) for package, inside in found.inside.items()},
        ran=found.ran,
        seconds=found.seconds,
        notes=found.notes,
    )


def headlines(found: JointSummary) -> str:
    """Return the result, and that of each guilty package, in one line."""
    return "; ".join([headline(found), *map(report.headline, found.inside.values())])


def headline(found: JointSummary) -> str:
    """Return the result in one line."""
    sets = [" and ".join(sorted(carrier.packages)) for carrier in found.carriers]
    joined = ", and on its own ".join(sets)
    return f"{'ambiguous, at most' if found.doubtful else 'guilty'}: {joined}"


def issue_text(found: JointSummary, title: str, command: str = "") -> str:
    """Return the bisections inside the guilty packages as Markdown for upstream issues."""
    return "\n".join(report.issue_text(one, title, command) for one in found.inside.values())
