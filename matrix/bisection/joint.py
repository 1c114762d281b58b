"""Two stacks of which one works: which of the packages that differ carries the failure, then which version of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from matrix.bisection import telling
from matrix.bisection.attribution import Attribution, Packages, WrongStackError, attribute
from matrix.bisection.axes import AxisName, Side, Subject, releases, side_of
from matrix.bisection.inquiry import Bisection, Inquiry, bisect, why
from matrix.bisection.noise import Seen
from matrix.bisection.probing import line_of
from matrix.bisection.search import Kind, Plan
from matrix.catalog.cell import parse_cell_id
from matrix.catalog.failure import Axis, Level, Package
from matrix.catalog.model import Catalog, Container, Reader
from matrix.catalog.versions import NONE
from matrix.errors import MatrixError
from matrix.planning.planned import Planned
from matrix.verdicts.record import Record

BASE = AxisName.TORCH.value  # the package of a stack that its base brings


@dataclass(frozen=True)
class Stack:
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
    good: Stack
    bad: Stack
    attribution: Attribution
    inside: Mapping[str, Bisection]
    records: Mapping[Packages, Record]
    lines: Mapping[Packages, str]
    ran: int
    seconds: float
    notes: tuple[str, ...]


def stack_of(catalog: Catalog, text: str, mcore: Side, te: Side, lacks: Callable[[str], str]) -> Stack:
    """Return the stack that BASE or BASE/mcore-V/te-V/driver-V names; what it leaves open is `mcore` and `te`.

    An image that can't run here (`lacks` says why) is stood for by its twin. Raises MatrixError.
    """
    named = parse_cell_id(text) if "/mcore-" in text else {"base": text, "mcore": NONE, "te": NONE, "driver": NONE}
    base = catalog.base(named["base"])
    own_core = side_of("" if named["mcore"] == NONE else named["mcore"], Package.MCORE)
    own_te = side_of("" if named["te"] == NONE else named["te"], Package.TE)
    core, engine = (own if own.version != NONE else given for own, given in ((own_core, mcore), (own_te, te)))
    if isinstance(base, Reader):
        return Stack(base.id, NONE, core, engine, named["driver"])
    if not isinstance(base, Container):
        return Stack(base.id, getattr(base, "torch", None) or NONE, core, engine, named["driver"])
    engine = engine if engine.version != NONE else Side(base.te or NONE)
    core = core if core.version != NONE else Side(base.megatron_core or NONE)
    twin, lack = catalog.twin(base), lacks(base.id)
    if lack and twin:
        note = f"{base.id} is stood for by its twin {twin.id}: {lack}"
        return Stack(twin.id, twin.torch, core, engine, named["driver"], (note,))
    return Stack(base.id, base.torch or NONE, core, engine, named["driver"])


def differing(subject: Subject, good: Stack, bad: Stack) -> tuple[list[str], tuple[str, ...]]:
    """Return the packages that the two stacks have at different versions, and what is said of those left alone."""
    packages = [name.value for name in (AxisName.TORCH, AxisName.MCORE, AxisName.TE, AxisName.DRIVER)]
    differ = [name for name in packages if good.shown(name) != bad.shown(name)]
    if "te" in differ and Axis.TE not in subject.failure.axes:
        differ.remove("te")
        return differ, (f"Transformer Engine plays no part in {subject.failure.id} by the catalog: it was left out",)
    return differ, ()


def mixture(subject: Subject, good: Stack, bad: Stack, taken: Packages) -> Subject:
    """Return the subject in which `taken` comes from the bad stack and all else from the good one."""
    side = {name: bad if name in taken else good for name in (one.value for one in AxisName)}
    base = subject.base if subject.level is Level.CONTRACT else side[BASE].base
    te = side["te"].te if Axis.TE in subject.failure.axes else Side()
    return replace(subject, base=base, mcore=side["mcore"].mcore, te=te, driver=side["driver"].driver)


def jointly(
    subject: Subject,
    good: Stack,
    bad: Stack,
    plan: Plan,
    inquiry: Inquiry,
    cheap: Callable[[Planned, Inquiry], bool],
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


def shown(good: Stack, bad: Stack, packages: Sequence[str], taken: Packages) -> str:
    """Return a mixture in words: every package that differs, and its version."""
    return ", ".join(f"{name} {(bad if name in taken else good).shown(name)}" for name in packages)


def to_json(told: Joint) -> dict[str, Any]:
    """Return plain JSON values. `answer` lists the guilty packages; each of `carriers` breaks the stack on its own."""
    carriers = sorted(told.attribution.carriers, key=lambda carrier: sorted(carrier.packages))
    packages = differing(told.subject, told.good, told.bad)[0]
    doubtful = any(carrier.doubtful for carrier in carriers)
    return {
        "answer": None if doubtful else sorted(frozenset().union(*(one.packages for one in carriers))),
        "kind": Kind.AMBIGUOUS.value if doubtful else "packages",
        "carriers": [
            {"packages": sorted(one.packages), "not_told_apart": sorted(one.doubtful)} for one in carriers
        ],
        "failure": told.subject.failure.id,
        "case": told.subject.case.name,
        "level": told.subject.level.value,
        "differ": {name: [told.good.shown(name), told.bad.shown(name)] for name in packages},
        "probes": [
            {
                "mixture": shown(told.good, told.bad, packages, taken),
                "from_bad": sorted(taken),
                "seen": seen.value,
                "why": why(told.records[taken]),
                "reproduce": told.lines[taken],
            }
            for taken, seen in told.attribution.asked.items()
        ],
        "inside": {package: telling.to_json(found) for package, found in told.inside.items()},
        "cost": {"ran": told.ran, "seconds": round(told.seconds, 3)},
        "notes": list(told.notes),
    }  # fmt: skip


def in_words(told: dict[str, Any], page: str) -> str:
    """Return what `to_json` returned, for a person at a terminal."""
    lines = [headline(told)]
    lines += [f"  {name}: {good} -> {bad}" for name, (good, bad) in told["differ"].items()]
    for carrier in told["carriers"]:
        if carrier["not_told_apart"]:
            lines.append(f"  no mixture could tell whether it takes {' and '.join(carrier['not_told_apart'])}")
    lines += [f"  in {package}: {telling.headline(found)}" for package, found in told["inside"].items()]
    lines.append(
        f"  cost: {len(told['probes'])} mixtures, {told['cost']['ran']} run now, {told['cost']['seconds']:.1f} s"
    )
    lines += [f"  note: {note}" for note in told["notes"]]
    lines += [f"  {one['seen'] + ':':6} {one['mixture']}\n         {one['reproduce']}" for one in told["probes"]]
    return "\n".join([*lines, f"  page: {page}"])


def headline(told: dict[str, Any]) -> str:
    """Return the answer in one line."""
    sets = [" and ".join(carrier["packages"]) for carrier in told["carriers"]]
    joined = ", and on its own ".join(sets)
    return f"{'ambiguous, at most' if told['answer'] is None else 'guilty'}: {joined}"
