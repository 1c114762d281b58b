"""The result of a bisection: for the terminal, as a page, and as Markdown for an upstream issue."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.folders import SITE
from matrix.ground.verdicts.text import tail
from matrix.prove.bisection.axes import PACKAGES, axis_named
from matrix.prove.bisection.noise import ProbeResult
from matrix.prove.bisection.result_summary import AttributionSummary, BisectionSummary, ChangePoint, ProbeSummary
from matrix.read.trees import LAYOUTS
from matrix.show.document import document
from matrix.show.terminal import Part, Prose, block, code, markdown_text, table

AT_MOST: Final = 12  # candidates of an ambiguous result that are listed
RESULTS: Final = {ProbeResult.GOOD: "passes", ProbeResult.BAD: "shows the failure", ProbeResult.SKIP: "no result"}
LEVELS: Final = {
    Level.CONTRACT: "both sides' sources are read and every call is bound to the callee's signature; nothing runs",
    Level.CPU: "the real packages run on CPU with gloo, no GPU",
    Level.GPU: "the full stack",
}


def render(summary: BisectionSummary, page: str) -> Iterator[Part]:
    """Yield the answer, what supports it, and the commands that repeat the probes."""
    yield Prose(summary.headlines[0])
    if summary.attribution:
        yield from _attributed(summary.attribution, summary.changes.values())
    else:
        for change in summary.changes.values():
            yield table(_facts(change), indent=2)
            yield from (f"  {probe.seen.value}: {probe.reproduce}" for probe in change.ends)
    yield f"  page: {page}"


def _facts(change: ChangePoint) -> list[tuple[str, str]]:
    """Return the rows of a change: what it may be, its confidence and cost."""
    cost = change.cost
    facts = [("before it:", change.before)] if change.before else []
    facts += [("may be:", label) for label in change.candidates[:AT_MOST]]
    if len(change.candidates) > AT_MOST:
        facts.append(("", f"... {len(change.candidates)} in all"))
    facts += [("contradiction:", f"no single change explains {point} and {later}") for point, later in change.flips]
    return [
        *facts,
        ("confidence:", f"{change.confidence:.2%}, assuming that the history changes once, and the stated noise"),
        (
            "cost:",
            f"{cost.asked} probes of {cost.points} points in {cost.rounds} rounds after the ends, "
            f"{cost.ran} run now, {cost.seconds:.1f} s",
        ),
        *(("note:", note) for note in change.notes),
    ]


def _attributed(attribution: AttributionSummary, changes: Collection[ChangePoint]) -> Iterator[Part]:
    """Yield what differs, the change in each guilty package, and each mixture of the two stacks with its command."""
    yield table(
        [
            *((f"{name}:", f"{good} -> {bad}") for name, (good, bad) in attribution.differ.items()),
            *((f"in {change.axis}:", change.headline) for change in changes),
            ("cost:", f"{len(attribution.probes)} mixtures, {attribution.ran} run now, {attribution.seconds:.1f} s"),
            *(("note:", note) for note in attribution.notes),
        ],
        indent=2,
    )
    for probe in attribution.probes:
        yield f"  {probe.seen.value}: {probe.mixture}"
        yield f"    {probe.reproduce or probe.why}"


def bisection_page(summary: BisectionSummary, issue: str) -> str:
    """Return the page of an answer; `issue` is the text of an upstream issue."""
    return document("bisection.html.j2", summary=summary, issue=issue, results=RESULTS)


def issue_text(summary: BisectionSummary, command: str = "", attached: Mapping[str, str] | None = None) -> str:
    """Return the changes as Markdown for upstream issues: facts that a reader can check without this project.

    `command` is what every point ran, "" for a failure of the catalog; `attached` are the texts of its files, by name.
    """
    files = [f"\n{code(name, in_table=False)}:\n\n{block(text)}\n" for name, text in (attached or {}).items()]
    return "\n".join(_issue(summary, change, command) for change in summary.changes.values()) + "".join(files)


def _issue(summary: BisectionSummary, change: ChangePoint, command: str) -> str:
    fixed = ", ".join(f"{axis} {value}" for axis, value in change.fixed.items())
    bad = next((probe for probe in change.probes if probe.seen is ProbeResult.BAD), None)
    printed = "\n".join(dict.fromkeys(bad.raised or [bad.why])) if bad else ""
    lines = [
        f"**{markdown_text(summary.title)}**",
        "",
        markdown_text(f"{change.headline[0].upper()}{change.headline[1:]}"),
        *([f"(before it: {markdown_text(change.before)})"] if change.before else []),
        *(f"- {markdown_text(label)}" for label in change.candidates),
        "",
        *(f"- {markdown_text(note)}" for note in change.notes if not (change.clone and change.clone in note)),
        f"With {markdown_text(fixed) or 'nothing else fixed'}; level {summary.level.value}: {LEVELS[summary.level]}.",
        "A point counts as bad only with this failure, as good only when it passes; anything else is skipped.",
        "",
        block(tail(printed, 40)),
        "",
        "| point | | outcome |",
        "|---|---|---|",
    ]
    for probe in change.probes:
        outcome = probe.raised[0].partition("\n")[0] if probe.raised else probe.why
        lines.append(f"| {markdown_text(probe.label)} | {probe.seen.value} | {code(outcome)} |")
    return "\n".join(
        [*lines, "", *(f"{probe.seen.value}: {_steps(probe, change, command)}" for probe in change.ends), ""]
    )


def _steps(probe: ProbeSummary, change: ChangePoint, command: str) -> str:
    """Return how a reader repeats a probe: by this project, without a folder of this machine, or by its packages."""
    layout = LAYOUTS[PACKAGES[axis_named(change.axis)]] if change.clone else None
    if not command:
        line = re.sub(rf"^{SITE}=\S+ ", "", probe.reproduce)
        return code(line.replace(change.clone, f"./{layout.project}") if layout else line, in_table=False)
    versions = {name: probe.resolved[name] for name in ("torch", *LAYOUTS) if name in probe.resolved}
    packages = [
        f"{layout.project} at {probe.point}" if layout and name in layout.releases else f"{name} {version}"
        for name, version in versions.items()
    ]
    return f"{code(command, in_table=False)} with {markdown_text(', '.join(packages))}"
