"""The result of a bisection: for the terminal, as a page, and as Markdown for an upstream issue."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final
from xml.etree import ElementTree

from matrix.ground.catalog.codec import encode
from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.folders import SITE
from matrix.ground.catalog.stack import Place
from matrix.ground.errors import ExitStatus
from matrix.ground.verdicts.text import one_line, tail, visible
from matrix.prove.bisection.axes import PACKAGES, axis_named
from matrix.prove.bisection.noise import ProbeResult
from matrix.prove.bisection.odds import BREAKS, StackEffect
from matrix.prove.bisection.result_summary import AttributionSummary, BisectionSummary, ChangePoint, ProbeSummary
from matrix.prove.bisection.turns import SIDES, JudgedTest
from matrix.read.trees import LAYOUTS
from matrix.show.document import document
from matrix.show.findings import Findings, FindingTopic, ReportedFinding, Severity, github, sarif
from matrix.show.terminal import Part, Prose, block, code, markdown_text, table, xml_document

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


MOST: Final = 60  # lines of the Markdown
ROWS: Final = 40  # rows of its table
ORDER: Final = [*StackEffect]
HEADS: Final = ("", "test", "fails in old", "fails in new", "signature or ratio", "known", "brought by")
NAME: Final = 90  # characters of a test in a row
REASON: Final = 110


@dataclass(frozen=True)
class StackComparison:
    """What a comparison shows. `accepted` are the breaks of the baseline: test and signature."""

    old: str
    new: str
    judged: Sequence[JudgedTest]
    causes: Mapping[str, str]
    accepted: frozenset[tuple[str, str]] = frozenset()
    known: Sequence[str] = ()
    rounds: int = 0
    seconds: float = 0.0
    error: float = 0.05
    unreached: Sequence[str] = ()
    commits: Mapping[str, str] = field(default_factory=dict)  # what history offers, by test
    places: Mapping[str, tuple[str, int]] = field(default_factory=dict)  # files of the user and lines, by test
    lines: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def counts_as_break(self, test: JudgedTest) -> bool:
        """Return whether a test newly breaks, and the baseline does not have it."""
        return test.finding.change in BREAKS and (test.name, test.finding.signature) not in self.accepted

    @property
    def breaks(self) -> list[JudgedTest]:
        """Return what newly breaks."""
        return [test for test in self.judged if self.counts_as_break(test)]

    @property
    def status(self) -> ExitStatus:
        """Return 1 where something newly breaks, 3 where a test is undecided or nothing has a result."""
        if self.breaks:
            return ExitStatus.BAD
        silent = (StackEffect.UNDECIDED, StackEffect.NOT_RUN, StackEffect.INFRASTRUCTURE)
        undecided = any(test.finding.change is StackEffect.UNDECIDED and not test.number for test in self.judged)
        nothing = all(test.finding.change in silent for test in self.judged)
        return ExitStatus.NOTHING if undecided or nothing else ExitStatus.GOOD

    @property
    def headline(self) -> str:
        """Return the sum in one line."""
        counts = Counter(test.finding.change for test in self.judged)
        counts[StackEffect.NOTHING], same = 0, counts[StackEffect.NOTHING]
        parts = [f"{counts[change]} {change.value}" for change in ORDER if counts[change]]
        accepted = sum(test.finding.change in BREAKS for test in self.judged) - len(self.breaks)
        baseline = f"; {accepted} of them in the baseline" if accepted else ""
        names = ", ".join(short_name(name, 40) for name in self.unreached[:3]) + ", ..." * (len(self.unreached) > 3)
        unreached = f"; the time was not enough to decide {len(self.unreached)}: {names}" if names else ""
        return f"{', '.join([*parts, f'{same} as before'])}{baseline}{unreached}"

    @property
    def note(self) -> str:
        """Return what the claims rest on."""
        return (
            f"{self.rounds} rounds in turns, {self.seconds:.0f} s; with a probability of {self.error:.0%} at most "
            "any of new, changed, fixed, worse and better is chance"
        )

    def rows(self) -> list[tuple[str, ...]]:
        """Return the rows of the table: what is new first, tests with one signature together."""
        listed = [test for test in self.judged if test.finding.change is not StackEffect.NOTHING or test.number]
        listed.sort(key=lambda test: (ORDER.index(test.finding.change), test.number, test.finding.signature, test.name))
        rows = []
        for _, group in groupby(listed, lambda test: test.name if test.number else self._group(test)):
            members = list(group)
            rows.append(self._row(members[0], len(members) - 1))
        return rows

    def _group(self, test: JudgedTest) -> tuple[object, ...]:
        finding = test.finding
        return (
            finding.change,
            finding.signature,
            finding.failures,
            finding.runs,
            (test.name, finding.signature) in self.accepted,
        )

    def _row(self, test: JudgedTest, more: int) -> tuple[str, ...]:
        finding = test.finding
        word = finding.change.value + " (baseline)" * (finding.change in BREAKS and not self.counts_as_break(test))
        name = short_name(test.name, NAME) + f" and {more} more" * bool(more)
        sides: Sequence[str] = [
            f"{failed} of {runs}" for failed, runs in zip(finding.failures, finding.runs, strict=True)
        ]
        if finding.values:
            sides = [f"{value:.6g}" for value in finding.values]
        return word, name, *sides, one_line(evidence(test), REASON), finding.known, one_line(self.cause(test), REASON)

    def cause(self, test: JudgedTest) -> str:
        """Return what brought a change by a search, else what history offers."""
        commit = self.commits.get(test.name, "")
        return "; ".join(filter(None, [self.causes.get(test.name, ""), commit and f"history: {commit}"]))

    def again(self) -> list[tuple[str, str]]:
        """Return the commands that run what breaks again, each once."""
        names = dict.fromkeys(test.trial.name for test in self.breaks)
        return [(side, line) for name in names for side, line in zip(SIDES, self.lines[name], strict=True)]


def short_name(name: str, width: int) -> str:
    """Return the end of a test's long name, and the start of a long command."""
    return f"...{visible(name[-width:])}" if len(name) > width and " " not in name else one_line(name, width)


def evidence(test: JudgedTest) -> str:
    """Return the signature of a test, or the ratio of a number with its interval."""
    finding = test.finding
    if finding.interval:
        low, high = finding.interval
        exact = f"{low - 1:+.2g}" if low == high else f"{low - 1:+.1%} to {high - 1:+.1%}"
        return f"{exact} in {finding.runs[0]} pairs"
    before = f"{finding.before} -> " if finding.change is StackEffect.CHANGED else ""
    return f"{before}{finding.signature or finding.text}"


def render_comparison(compared: StackComparison) -> Iterator[Part]:
    """Yield the answer, what is known without a run, each change, and the commands that run it again."""
    yield Prose(f"{compared.old} -> {compared.new}: {compared.headline}")
    yield from (Prose(line, 2) for line in compared.known)
    if rows := compared.rows():
        yield table(rows, HEADS, indent=2, gap=2)
    yield Prose(compared.note, 2)
    yield from (f"  {side}: {line}" for side, line in compared.again())


def markdown(compared: StackComparison) -> str:
    """Return the table for a pull request: sixty lines at most."""
    rows, again = compared.rows(), compared.again()
    head = [
        f"**{markdown_text(compared.old)} -> {markdown_text(compared.new)}: {markdown_text(compared.headline)}**",
        "",
    ]
    head += [f"- {markdown_text(line)}" for line in compared.known[:5]] + [""] * bool(compared.known)
    lines = [f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|"] if rows else []
    for word, name, *sides, reason, known, cause in rows[:ROWS]:
        cells = [f"**{word}**" if word in {change.value for change in BREAKS} else word, code(name), *sides]
        lines.append(f"| {' | '.join([*cells, code(reason) if reason else '', known, markdown_text(cause)])} |")
    if len(rows) > ROWS:
        lines.append(f"| | {len(rows) - ROWS} further rows | | | | | |")
    foot = ["", markdown_text(compared.note), *(f"- {side}: {code(line, in_table=False)}" for side, line in again[:4])]
    return "\n".join([*head, *lines, *foot][:MOST])


def plain(compared: StackComparison) -> list[dict[str, Any]]:
    """Return each test and number as plain JSON values."""
    return [
        {
            "test": test.name,
            "number": test.number,
            **encode(test.finding),
            "breaks": compared.counts_as_break(test),
            "cause": compared.causes.get(test.name, ""),
            "commit": compared.commits.get(test.name, ""),
            "reproduce": list(compared.lines[test.trial.name]),
        }
        for test in sorted(compared.judged, key=lambda test: (ORDER.index(test.finding.change), test.name))
    ]


def beside(compared: StackComparison) -> dict[str, Any]:
    """Return what the JSON has of the whole comparison."""
    return {
        **{name: getattr(compared, name) for name in ("old", "new", "rounds", "error")},
        "ended": not compared.unreached,
        "unreached": list(compared.unreached),
        "status": int(compared.status),
        "known": list(compared.known),
        "seconds": round(compared.seconds, 1),
    }


def _found(compared: StackComparison) -> Findings:
    """Return what newly breaks as findings, then what drifts or is undecided."""
    reported = []
    for test in sorted(compared.judged, key=lambda test: ORDER.index(test.finding.change)):
        finding, breaks = test.finding, compared.counts_as_break(test)
        if breaks or finding.change in (StackEffect.DRIFT, StackEffect.UNDECIDED):
            counts = [f"{failed} of {runs}" for failed, runs in zip(finding.failures, finding.runs, strict=True)]
            parts = [
                evidence(test),
                "" if test.number else f"fails in {counts[0]} runs of the old stack, in {counts[1]} of the new one",
                finding.known and f"known: {finding.known}",
                compared.cause(test),
                f"run it again: {compared.lines[test.trial.name][1]}",
            ]
            topic = FindingTopic(f"compare-{finding.change.value}", f"{finding.change.value} between two stacks")
            severity = Severity.ERROR if breaks else Severity.WARNING
            headline, line = f"{finding.change.value}: {test.name}", compared.places.get(test.name)
            reported.append(
                ReportedFinding(topic, headline, ". ".join(filter(None, parts)), severity, line and Place(*line))
            )
    return Findings("megatrix compare", tuple(reported), (compared.headline, compared.note))


def junit(compared: StackComparison) -> str:
    """Return the comparison as JUnit: a test that newly breaks is a failure, one without a result is skipped."""
    suite = ElementTree.Element("testsuite", name="megatrix compare", tests=str(len(compared.judged)))
    for test in compared.judged:
        item = ElementTree.SubElement(suite, "testcase", classname="compare", name=visible(test.name))
        text = visible(f"{test.finding.change.value}: {evidence(test)}")
        if compared.counts_as_break(test):
            ElementTree.SubElement(item, "failure", message=text).text = visible(compared.lines[test.trial.name][1])
        elif test.finding.change in (StackEffect.UNDECIDED, StackEffect.NOT_RUN, StackEffect.INFRASTRUCTURE):
            ElementTree.SubElement(item, "skipped", message=text)
    suite.set("failures", str(len(compared.breaks)))
    return xml_document(ElementTree.tostring(suite, encoding="unicode"))


FORMATS: Final[dict[str, Callable[[StackComparison], str]]] = {
    "md": markdown,
    "junit": junit,
    "github": lambda compared: github(_found(compared)),
    "sarif": lambda compared: sarif(_found(compared)),
}
