"""The summary of a bisection: the change along each axis, and the packages that two stacks are attributed to. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from matrix.ground.catalog.codec import encode
from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.stack import ABSENT, BASE, DRIVER, MCORE, TE, TORCH, WRITER_MCORE
from matrix.ground.verdicts.outcome import Raised
from matrix.prove.bisection.axes import WORDS, axis_word
from matrix.prove.bisection.joint import BisectionAnswer
from matrix.prove.bisection.noise import ProbeResult
from matrix.prove.bisection.probe_session import Bisection, BisectionSession, seen_of, why
from matrix.prove.bisection.search import Carrier, ResultKind

PACKAGE: Final = {
    MCORE: "Megatron-LM",
    TE: "Transformer Engine",
    TORCH: "PyTorch",
    BASE: "container",
    DRIVER: "driver",
    WRITER_MCORE: "Megatron-LM that wrote the checkpoint",
}
# What every point can share, and its name in `fixed`.
FIXED: Final = {BASE: "base", **{name: axis_word(name) for name in (MCORE, TE, DRIVER, WRITER_MCORE)}}
SHOWN: Final = {ResultKind.FIRST_BAD: "first bad", ResultKind.FIRST_FIXED: "first fixed"}


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


@dataclass(frozen=True)
class Cost:
    """The cost of a search.

    `asked` counts the probes of `points`, `rounds` their rounds, `ran` the probes that had no stored result.
    """

    points: int
    asked: int
    ran: int
    rounds: int
    seconds: float


@dataclass(frozen=True)
class ChangePoint:
    """Where the result changes along one axis.

    `axis` is the word of the component. `answer` is the point where the result changes, None if it is ambiguous;
    `candidates` are then the points that it may be. `before` is the nearest ancestor that was probed and still has the
    old result.
    """

    answer: str | None
    kind: ResultKind
    confidence: float
    label: str
    before: str
    axis: str
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

    @property
    def headline(self) -> str:
        """Return the result in one line."""
        package = PACKAGE.get(WORDS.get(self.axis, self.axis), self.axis)
        if not self.ambiguous:
            return f"{SHOWN[self.kind]}: {package} {self.label}"
        if len(self.candidates) == 1 and not self.flips:
            return f"ambiguous: {package} {self.candidates[0]}: further runs contradict it"
        reason = "the history changes more than once" if self.flips else "the points between are inconclusive"
        return f"ambiguous: {len(self.candidates)} of {package}: {reason}"


@dataclass(frozen=True)
class MixtureSummary:
    """A mixture that was probed: its packages from the bad stack, the result and the reason."""

    mixture: str
    from_bad: tuple[str, ...]
    seen: ProbeResult
    why: str
    reproduce: str


@dataclass(frozen=True)
class AttributionSummary:
    """The packages to which the failure of a stack is attributed.

    Each of `carriers` breaks the stack on its own; `differ` holds the good and the bad version of each package. `ran`
    counts the probes that had no stored result, those along the axes too.
    """

    carriers: tuple[Carrier, ...]
    differ: Mapping[str, tuple[str, str]]
    probes: tuple[MixtureSummary, ...]
    ran: int
    seconds: float
    notes: tuple[str, ...]

    @property
    def doubtful(self) -> bool:
        """Return whether a carrier holds packages of which no mixture shows whether the failure needs them."""
        return any(carrier.doubtful for carrier in self.carriers)

    @property
    def guilty(self) -> list[str] | None:
        """Return the guilty packages, None where they are ambiguous."""
        return None if self.doubtful else sorted(frozenset().union(*(carrier.packages for carrier in self.carriers)))

    @property
    def headline(self) -> str:
        """Return the result in one line."""
        sets = ", and on its own ".join(map(self._carrier, self.carriers))
        certain = not self.doubtful or self.carriers[0].packages - self.carriers[0].doubtful
        return f"{'guilty: ' if certain else ''}{sets}"

    def _carrier(self, carrier: Carrier) -> str:
        """Return a set that carries the failure: what it needs, then what could not be separated, and why."""
        if not carrier.doubtful:
            return " and ".join(sorted(carrier.packages))
        parts = (carrier.packages - carrier.doubtful, carrier.doubtful)
        names, doubtful = (
            [" ".join([name, *self.differ.get(name, ())[1:]]) for name in sorted(part)] for part in parts
        )
        which = f"{' and '.join(names)}, perhaps only with" if names else "one or more of:"
        reasons = (self._reason(carrier.packages - {name}) for name in sorted(carrier.doubtful))
        return f"{which} {', '.join(doubtful)}, not separable here: {'; '.join(dict.fromkeys(filter(None, reasons)))}"

    def _reason(self, packages: frozenset[str]) -> str:
        """Return why the mixture with these packages from the bad stack has no result, in a few words."""
        whys = (probe.why for probe in self.probes if frozenset(probe.from_bad) == packages)
        return next(whys, "").removeprefix("unavailable: ").partition(": got ")[0]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "answer": self.guilty,
            "kind": ResultKind.AMBIGUOUS.value if self.doubtful else "packages",
            "carriers": [
                {"packages": sorted(carrier.packages), "not_told_apart": sorted(carrier.doubtful)}
                for carrier in self.carriers
            ],
            "differ": {name: list(versions) for name, versions in self.differ.items()},
            "probes": encode(self.probes),
            "cost": {"ran": self.ran, "seconds": self.seconds},
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class BisectionSummary:
    """The answer of a bisection, ready to print, or to write as JSON or as a page.

    `changes` has the change along each searched axis, by axis. Without an `attribution` it is the one along the axis
    of the question; with one, those within the guilty packages.
    """

    failure: str
    title: str
    case: str
    level: Level
    changes: Mapping[str, ChangePoint]
    attribution: AttributionSummary | None = None

    @property
    def ambiguous(self) -> bool:
        """Return whether the guilty packages or the place of a change are ambiguous."""
        doubtful = self.attribution is not None and self.attribution.doubtful
        return doubtful or any(change.ambiguous for change in self.changes.values())

    @property
    def headlines(self) -> list[str]:
        """Return the result in lines: the guilty packages, and each change."""
        attributed = [self.attribution.headline] if self.attribution else []
        return [*attributed, *(change.headline for change in self.changes.values())]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values (docs/schema/bisect.json)."""
        case = {"failure": self.failure, "case": self.case, "level": self.level.value}
        inside = {axis: {**encode(change), **case} for axis, change in self.changes.items()}
        if self.attribution:
            return {**self.attribution.to_json(), **case, "inside": inside}
        (alone,) = inside.values()
        return alone


def summarize(answer: BisectionAnswer, session: BisectionSession) -> BisectionSummary:
    """Return the summary of an answer; its cost is what the session ran and took."""
    subject, compared = answer.subject, answer.comparison
    changes = {axis_word(name): _change(bisection) for name, bisection in answer.bisections.items()}
    case = (subject.failure.id, subject.failure.title, subject.case.name, subject.level)
    if not compared:
        alone = {
            axis: replace(change, cost=replace(change.cost, ran=session.ran, seconds=round(session.seconds, 3)))
            for axis, change in changes.items()
        }
        return BisectionSummary(*case, alone)
    stacks, attribution = compared.stacks, compared.attribution
    mixtures = tuple(
        MixtureSummary(
            stacks.label(mixture),
            tuple(sorted(map(axis_word, mixture))),
            result,
            compared.reasons[mixture],
            compared.lines.get(mixture, ""),
        )
        for mixture, result in attribution.probed.items()
    )
    worded = [
        Carrier(*(frozenset(map(axis_word, names)) for names in (carrier.packages, carrier.doubtful)))
        for carrier in attribution.carriers
    ]
    carriers = tuple(sorted(worded, key=lambda carrier: sorted(carrier.packages)))
    differ = {axis_word(name): stacks.versions(name) for name in stacks.components}
    attributed = AttributionSummary(carriers, differ, mixtures, session.ran, round(session.seconds, 3), answer.notes)
    return BisectionSummary(*case, changes, attributed)


def _change(bisection: Bisection) -> ChangePoint:
    result, points, old_place = bisection.result, bisection.axis.points, bisection.before
    claimed = result.kind is not ResultKind.AMBIGUOUS
    return ChangePoint(
        answer=points[result.candidates[0]].id if claimed else None,
        kind=result.kind,
        confidence=round(result.confidence, 6),
        label=points[result.candidates[0]].label if claimed else "",
        before=points[old_place].label if old_place is not None else "",
        axis=axis_word(bisection.axis.component),
        fixed=_fixed(bisection),
        clone=bisection.axis.clone,
        candidates=() if claimed else tuple(points[index].label for index in result.candidates),
        flips=tuple((points[changed].label, points[back].label) for changed, back in result.flips),
        probes=tuple(_probe(bisection, index) for index in bisection.records),
        cost=Cost(len(points), result.probes, bisection.ran, result.rounds, round(bisection.seconds, 3)),
        notes=bisection.notes,
    )


def _probe(bisection: Bisection, place: int) -> ProbeSummary:
    runs, tally = bisection.records[place], bisection.result.tallies[place]
    typical = next((record for record in reversed(runs) if seen_of(record) is tally.settled), runs[-1])
    # This project raises the failure of a command, after what that printed.
    upstream = (
        raised
        for raised in typical.outcome.chain
        if not (raised.frames and raised.frames[-1].file.endswith("matrix/kit/command.py"))
    )
    return ProbeSummary(
        point=bisection.axis.points[place].id,
        label=bisection.axis.points[place].label,
        seen=tally.settled or ProbeResult.SKIP,
        runs={result: tally.runs[result] for result in ProbeResult if tally.runs[result]},
        why=why(typical),
        signature=typical.signature,
        raised=tuple(map(_raised, upstream)),
        seconds=round(sum(record.outcome.seconds for record in runs), 3),
        reproduce=bisection.lines[place],
        resolved=typical.resolved,
    )


def _raised(raised: Raised) -> str:
    """Return an exception and where it was raised, without the folders of this machine."""
    text = f"{raised.type}: {raised.message}" if raised.message else raised.type
    if not raised.frames:
        return text
    frame = raised.frames[-1]
    return f"{text}\n  {'/'.join(Path(frame.file).parts[-4:])}:{frame.line} in {frame.function}"


def _fixed(bisection: Bisection) -> dict[str, str]:
    """Return the versions and sources that every point shares, by their names."""
    subject, component = bisection.subject, bisection.axis.component
    varied = {BASE if component == TORCH else component, *([BASE] if subject.level is Level.CONTRACT else [])}
    shared = (name for name in FIXED if name not in varied and subject.stack[name] not in (ABSENT, ""))
    return {FIXED[name]: subject.text(name) for name in shared}
