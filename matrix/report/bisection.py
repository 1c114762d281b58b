"""The result of a bisection, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from matrix.bisection import joint, report
from matrix.bisection.joint import JointSummary
from matrix.bisection.report import BisectionSummary
from matrix.report.terminal import Part, Prose, table

AT_MOST: Final = 12  # candidates of an ambiguous result that are listed


def render(found: BisectionSummary, page: str) -> Iterator[Part]:
    """Yield the answer, what supports it, and the commands for both sides."""
    cost = found.cost
    facts = [("before it:", found.before)] if found.before else []
    facts += [("may be:", label) for label in found.candidates[:AT_MOST]]
    if len(found.candidates) > AT_MOST:
        facts.append(("", f"... {len(found.candidates)} in all"))
    facts += [("contradiction:", f"no single change explains {one} and {other}") for one, other in found.flips]
    facts += [
        ("confidence:", f"{found.confidence:.2%}, assuming that the history changes once, and the stated noise"),
        (
            "cost:",
            f"{cost.asked} probes of {cost.points} points in {cost.rounds} rounds after the ends, "
            f"{cost.ran} run now, {cost.seconds:.1f} s",
        ),
        *(("note:", note) for note in found.notes),
    ]
    yield Prose(report.headline(found))
    yield table(facts, indent=2)
    yield from (f"  {probe.seen.value}: {probe.reproduce}" for probe in found.ends)
    yield f"  page: {page}"


def render_joint(found: JointSummary, page: str) -> Iterator[Part]:
    """Yield the guilty packages, what differs, and each mixture of the two stacks with its command."""
    yield Prose(joint.headline(found))
    doubtful = (" and ".join(sorted(one.doubtful)) for one in found.carriers if one.doubtful)
    yield table(
        [
            *((f"{name}:", f"{good} -> {bad}") for name, (good, bad) in found.differ.items()),
            *(("doubtful:", f"no mixture shows whether the failure needs {packages}") for packages in doubtful),
            *((f"in {package}:", report.headline(inside)) for package, inside in found.inside.items()),
            ("cost:", f"{len(found.probes)} mixtures, {found.ran} run now, {found.seconds:.1f} s"),
            *(("note:", note) for note in found.notes),
        ],
        indent=2,
    )
    for probe in found.probes:
        yield from (f"  {probe.seen.value}: {probe.mixture}", f"    {probe.reproduce}")
    yield f"  page: {page}"
