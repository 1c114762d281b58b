"""The comparison of two stacks by their tests: for the terminal, as Markdown for a pull request, JSON and JUnit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final
from xml.etree import ElementTree

from matrix.ground.catalog.codec import encode
from matrix.ground.errors import ExitStatus
from matrix.ground.verdicts.text import one_line, visible
from matrix.prove.bisection.odds import BREAKS, Change
from matrix.prove.bisection.turns import TestedThing
from matrix.show.terminal import Part, Prose, code, markdown_text, table, xml_document

MOST: Final = 60  # lines of the Markdown
ROWS: Final = 40  # rows of its table
AGREES: Final = (Change.NOTHING, Change.PRE_EXISTING)  # not listed before the others
ORDER: Final = [*Change]
HEADS: Final = ("", "test", "fails in old", "fails in new", "signature or ratio", "known", "brought by")
NAME: Final = 90  # characters of a test in a row
REASON: Final = 110


@dataclass(frozen=True)
class StackComparison:
    """What a comparison shows. `accepted` are the breaks of the baseline: test and signature."""

    old: str
    new: str
    things: Sequence[TestedThing]
    causes: Mapping[str, str]
    accepted: frozenset[tuple[str, str]] = frozenset()
    known: Sequence[str] = ()
    rounds: int = 0
    seconds: float = 0.0
    error: float = 0.05
    ended: bool = True
    lines: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def counts_as_break(self, thing: TestedThing) -> bool:
        """Return whether a test newly breaks, and the baseline does not have it."""
        return thing.finding.change in BREAKS and (thing.name, thing.finding.signature) not in self.accepted

    @property
    def breaks(self) -> list[TestedThing]:
        """Return what newly breaks."""
        return [thing for thing in self.things if self.counts_as_break(thing)]

    @property
    def status(self) -> ExitStatus:
        """Return 1 where something newly breaks, 3 where a test is undecided or nothing has a result."""
        if self.breaks:
            return ExitStatus.BAD
        silent = (Change.UNDECIDED, Change.NOT_RUN, Change.INFRASTRUCTURE)
        undecided = any(thing.finding.change is Change.UNDECIDED and not thing.number for thing in self.things)
        nothing = all(thing.finding.change in silent for thing in self.things)
        return ExitStatus.NOTHING if undecided or nothing else ExitStatus.GOOD

    @property
    def headline(self) -> str:
        """Return the sum in one line."""
        counts = Counter(thing.finding.change for thing in self.things)
        counts[Change.NOTHING], same = 0, counts[Change.NOTHING]
        parts = [f"{counts[change]} {change.value}" for change in ORDER if counts[change]]
        accepted = sum(thing.finding.change in BREAKS for thing in self.things) - len(self.breaks)
        baseline = f"; {accepted} of them in the baseline" if accepted else ""
        unreached = "" if self.ended else "; the time is used up before all was decided"
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
        listed = [thing for thing in self.things if thing.finding.change is not Change.NOTHING or thing.number]
        listed.sort(
            key=lambda thing: (ORDER.index(thing.finding.change), thing.number, thing.finding.signature, thing.name)
        )
        rows = []
        for _, group in groupby(listed, lambda thing: thing.name if thing.number else self._group(thing)):
            members = list(group)
            rows.append(self._row(members[0], len(members) - 1))
        return rows

    def _group(self, thing: TestedThing) -> tuple[object, ...]:
        finding = thing.finding
        return (
            finding.change,
            finding.signature,
            finding.failures,
            finding.runs,
            (thing.name, finding.signature) in self.accepted,
        )

    def _row(self, thing: TestedThing, more: int) -> tuple[str, ...]:
        finding = thing.finding
        word = finding.change.value + " (baseline)" * (finding.change in BREAKS and not self.counts_as_break(thing))
        name = one_line(thing.name, NAME) + f" and {more} more" * bool(more)
        sides: Sequence[str] = [
            f"{failed} of {runs}" for failed, runs in zip(finding.failures, finding.runs, strict=True)
        ]
        if finding.values:
            sides = [f"{value:.6g}" for value in finding.values]
        known = finding.known
        return (
            word,
            name,
            *sides,
            one_line(evidence(thing), REASON),
            known,
            one_line(self.causes.get(thing.name, ""), REASON),
        )

    def again(self) -> list[tuple[str, str]]:
        """Return the commands that run what breaks again, each once."""
        names = dict.fromkeys(thing.trial.name for thing in self.breaks)
        lines = {side: line for name in names for side, line in zip(("old", "new"), self.lines[name], strict=True)}
        return [*lines.items()]


def evidence(thing: TestedThing) -> str:
    """Return the signature of a test, or the ratio of a number with its interval."""
    finding = thing.finding
    if finding.interval:
        low, high = finding.interval
        exact = f"{low - 1:+.2g}" if low == high else f"{low - 1:+.1%} to {high - 1:+.1%}"
        return f"{exact} in {finding.runs[0]} pairs"
    before = f"{finding.before} -> " if finding.change is Change.CHANGED else ""
    return f"{before}{finding.signature or finding.text}"


def render(compared: StackComparison) -> Iterator[Part]:
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
            "test": thing.name,
            "number": thing.number,
            **encode(thing.finding),
            "breaks": compared.counts_as_break(thing),
            "cause": compared.causes.get(thing.name, ""),
            "reproduce": list(compared.lines[thing.trial.name]),
        }
        for thing in sorted(compared.things, key=lambda thing: (ORDER.index(thing.finding.change), thing.name))
    ]


def beside(compared: StackComparison) -> dict[str, Any]:
    """Return what the JSON has of the whole comparison."""
    values = {
        name: value for name, value in vars(compared).items() if name in ("old", "new", "rounds", "error", "ended")
    }
    return {
        **values,
        "status": int(compared.status),
        "known": list(compared.known),
        "seconds": round(compared.seconds, 1),
    }


def junit(compared: StackComparison) -> str:
    """Return the comparison as JUnit: a test that newly breaks is a failure, one without a result is skipped."""
    suite = ElementTree.Element("testsuite", name="megatrix compare", tests=str(len(compared.things)))
    for thing in compared.things:
        item = ElementTree.SubElement(suite, "testcase", classname="compare", name=visible(thing.name))
        text = visible(f"{thing.finding.change.value}: {evidence(thing)}")
        if compared.counts_as_break(thing):
            ElementTree.SubElement(item, "failure", message=text).text = visible(compared.lines[thing.trial.name][1])
        elif thing.finding.change in (Change.UNDECIDED, Change.NOT_RUN, Change.INFRASTRUCTURE):
            ElementTree.SubElement(item, "skipped", message=text)
    suite.set("failures", str(len(compared.breaks)))
    return xml_document(ElementTree.tostring(suite, encoding="unicode"))
