"""The summary of a bisection: as JSON, and as text for an upstream issue."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matrix.bisection.axes import PACKAGES, AxisName
from matrix.bisection.noise import ProbeResult
from matrix.bisection.probing import seen_of
from matrix.bisection.search import ResultKind
from matrix.bisection.session import Bisection, why
from matrix.catalog.failure import Level
from matrix.catalog.folders import SITE
from matrix.catalog.versions import NONE
from matrix.provision.trees import LAYOUTS
from matrix.verdicts.outcome import Raised
from matrix.verdicts.record import Record
from matrix.verdicts.text import one_line, tail

PACKAGE = {
    AxisName.MCORE: "Megatron-LM",
    AxisName.TE: "Transformer Engine",
    AxisName.TORCH: "PyTorch",
    AxisName.CONTAINER: "container",
    AxisName.DRIVER: "driver",
    AxisName.WRITER: "Megatron-LM that wrote the checkpoint",
}
SHOWN = {ResultKind.FIRST_BAD: "first bad", ResultKind.FIRST_FIXED: "first fixed", ResultKind.AMBIGUOUS: "ambiguous"}


@dataclass(frozen=True)
class ProbeSummary:
    """A point that was probed: its result, the number of runs per result, and the reason from one run."""

    point: str
    label: str
    seen: ProbeResult
    runs: Mapping[ProbeResult, int]
    why: str
    signature: str | None
    raised: tuple[str, ...]
    seconds: float
    reproduce: str
    resolved: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            **vars(self),
            "seen": self.seen.value,
            "runs": {seen.value: count for seen, count in self.runs.items()},
            "raised": list(self.raised),
            "seconds": round(self.seconds, 3),
            "resolved": dict(self.resolved),
        }


@dataclass(frozen=True)
class Cost:
    """The cost of a bisection.

    `asked` counts the probes of `points`, `rounds` their rounds, `ran` the probes that had no stored result.
    """

    points: int
    asked: int
    ran: int
    rounds: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**vars(self), "seconds": round(self.seconds, 3)}


@dataclass(frozen=True)
class BisectionSummary:
    """A bisection, ready to print, or to write as JSON or as a page.

    `answer` is the point where the result changes, None if it is ambiguous; `candidates` are then the points that it
    may be. `before` is the nearest ancestor that was probed and still has the old result.
    """

    answer: str | None
    kind: ResultKind
    confidence: float
    label: str
    before: str
    failure: str
    case: str
    level: Level
    axis: AxisName
    fixed: Mapping[str, str]
    clone: str
    candidates: tuple[str, ...]
    flips: tuple[tuple[str, str], ...]
    probes: tuple[ProbeSummary, ...]
    cost: Cost
    notes: tuple[str, ...]

    @property
    def ambiguous(self) -> bool:
        """Return whether there is no unique answer."""
        return self.kind is ResultKind.AMBIGUOUS

    @property
    def ends(self) -> list[ProbeSummary]:
        """Return the probes on both sides of the change."""
        return [probe for probe in self.probes if probe.label in (self.label, self.before)]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            **vars(self),
            "kind": self.kind.value,
            "confidence": round(self.confidence, 6),
            "level": self.level.value,
            "axis": self.axis.value,
            "fixed": dict(self.fixed),
            "candidates": list(self.candidates),
            "flips": [list(flip) for flip in self.flips],
            "probes": [probe.to_json() for probe in self.probes],
            "cost": self.cost.to_json(),
            "notes": list(self.notes),
        }


def summarize(bisection: Bisection) -> BisectionSummary:
    """Return the summary of a bisection."""
    found, points, subject = bisection.found, bisection.axis.points, bisection.subject
    claimed = found.kind is not ResultKind.AMBIGUOUS
    before = place_before(bisection)
    return BisectionSummary(
        answer=points[found.candidates[0]].id if claimed else None,
        kind=found.kind,
        confidence=found.confidence,
        label=points[found.candidates[0]].label if claimed else "",
        before=points[before].label if before is not None else "",
        failure=subject.failure.id,
        case=subject.case.name,
        level=subject.level,
        axis=bisection.axis.name,
        fixed=_fixed(bisection),
        clone=bisection.axis.clone,
        candidates=() if claimed else tuple(points[place].label for place in found.candidates),
        flips=tuple((points[one].label, points[other].label) for one, other in found.flips),
        probes=tuple(_probe(bisection, place) for place in bisection.records),
        cost=Cost(len(points), found.probes, bisection.ran, found.rounds, bisection.seconds),
        notes=bisection.notes,
    )


def _probe(bisection: Bisection, place: int) -> ProbeSummary:
    runs, tally = bisection.records[place], bisection.found.tallies[place]
    record = _typical(runs, tally.settled)
    return ProbeSummary(
        point=bisection.axis.points[place].id,
        label=bisection.axis.points[place].label,
        seen=tally.settled or ProbeResult.SKIP,
        runs={seen: tally.runs[seen] for seen in ProbeResult if tally.runs[seen]},
        why=why(record),
        signature=record.signature,
        raised=tuple(_raised(one) for one in record.outcome.chain if not _own(one)),
        seconds=sum(one.outcome.seconds for one in runs),
        reproduce=bisection.lines[place],
        resolved=record.resolved,
    )


def _own(raised: Raised) -> bool:
    """Return whether this project raised an exception: for the failure of a command, after what that printed."""
    return bool(raised.frames) and raised.frames[-1].file.endswith("matrix/kit/command.py")


def _raised(raised: Raised) -> str:
    """Return an exception and where it was raised, without the folders of this machine."""
    text = f"{raised.type}: {raised.message}" if raised.message else raised.type
    if not raised.frames:
        return text
    frame = raised.frames[-1]
    return f"{text}\n  {'/'.join(Path(frame.file).parts[-4:])}:{frame.line} in {frame.function}"


def _typical(runs: tuple[Record, ...], settled: ProbeResult | None) -> Record:
    """Return the last run with the settled result of the point, or the last run."""
    return next((record for record in reversed(runs) if seen_of(record) is settled), runs[-1])


def place_before(bisection: Bisection) -> int | None:
    """Return the probed ancestor nearest to the change that still has the result of the old end."""
    new = bisection.found.tallies[len(bisection.axis.points) - 1].settled
    below = bisection.axis.order.below[bisection.found.candidates[-1]]
    old = [
        place
        for place, tally in bisection.found.tallies.items()
        if tally.settled not in (new, ProbeResult.SKIP) and below >> place & 1
    ]
    return max(old, key=lambda place: bisection.axis.order.below[place].bit_count(), default=None)


def _fixed(bisection: Bisection) -> dict[str, str]:
    """Return the base, sides and driver that every point shares, by axis."""
    subject, name = bisection.subject, bisection.axis.name
    own = {AxisName.TORCH: "base", AxisName.CONTAINER: "base"}.get(name, name.value)
    base = subject.base if subject.level is not Level.CONTRACT else ""
    sides = {"base": base, "mcore": str(subject.mcore), "te": str(subject.te), "driver": subject.driver}
    sides["writer"] = str(subject.writer)
    return {axis: value for axis, value in sides.items() if axis != own and value not in ("", NONE)}


def headline(found: BisectionSummary) -> str:
    """Return the result in one line."""
    package = PACKAGE[found.axis]
    if found.kind is not ResultKind.AMBIGUOUS:
        return f"{SHOWN[found.kind]}: {package} {found.label}"
    reason = "the history changes more than once" if found.flips else "the points between are inconclusive"
    if len(found.candidates) == 1 and not found.flips:
        return f"ambiguous: {package} {found.candidates[0]}: further runs contradict it"
    return f"ambiguous: {len(found.candidates)} of {package}: {reason}"


def issue_text(found: BisectionSummary, title: str, command: str = "") -> str:
    """Return the bisection as Markdown for an upstream issue: facts that a reader can check without this project.

    `command` is what every point ran, "" for a failure of the catalog.
    """
    fixed = ", ".join(f"{axis} {value}" for axis, value in found.fixed.items())
    bad = next((probe for probe in found.probes if probe.seen is ProbeResult.BAD), None)
    shown = "\n".join(dict.fromkeys(bad.raised or [bad.why])) if bad else ""
    said = [one.raised[0].partition("\n")[0] if one.raised else one.why for one in found.probes]
    rows = [
        f"| {_cell(one.label)} | {one.seen.value} | {_cell(why)} |" for one, why in zip(found.probes, said, strict=True)
    ]
    may_be = [f"- {label}" for label in found.candidates]
    return "\n".join(
        [
            f"**{title}**",
            "",
            f"{headline(found)[0].upper()}{headline(found)[1:]}",
            *([f"(before it: {found.before})"] if found.before else []),
            *may_be,
            "",
            f"With {fixed or 'nothing else fixed'}; level {found.level.value}: {LEVELS[found.level]}.",
            "A point counts as bad only with this failure, as good only when it passes; anything else is skipped.",
            "",
            *(f"    {line}" for line in tail(shown, 40).splitlines()),
            "",
            "| point | | outcome |",
            "|---|---|---|",
            *rows,
            "",
            *(f"{one.seen.value}: {_steps(one, found, command)}" for one in found.ends),
            "",
        ]
    )  # fmt: skip


LEVELS = {
    Level.CONTRACT: "both sides' sources are read and every call is bound to the callee's signature; nothing runs",
    Level.CPU: "the real packages run on CPU with gloo, no GPU",
    Level.GPU: "the full stack",
}


def _cell(text: str) -> str:
    return one_line(text).replace("|", r"\|")


def _steps(probe: ProbeSummary, found: BisectionSummary, command: str) -> str:
    """Return how a reader sees the result of a probe: by this project, or by the packages of a command."""
    if not command:
        return f"`{_public(probe.reproduce, found)}`"
    of_axis = LAYOUTS[PACKAGES[found.axis].value] if found.clone else None
    named = {name: probe.resolved[name] for name in ("torch", *LAYOUTS) if name in probe.resolved}
    packages = [
        f"{of_axis.project} at {probe.point}" if of_axis and name in of_axis.releases else f"{name} {version}"
        for name, version in named.items()
    ]
    return f"`{command}` with {', '.join(packages)}"


def _public(line: str, found: BisectionSummary) -> str:
    """Return a command that names no folder of this machine."""
    line = re.sub(rf"^{SITE}=\S+ ", "", line)
    name = LAYOUTS[PACKAGES[found.axis].value].project if found.clone else ""
    return line.replace(found.clone, f"./{name}") if name else line
