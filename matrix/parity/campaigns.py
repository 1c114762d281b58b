"""A campaign: cores one after the other, each with its own cell, judgements and part of the time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from matrix.catalog.model import Catalog
from matrix.kit.parity.factors import Point
from matrix.parity.cause_search import Cause, JudgePoint, Search
from matrix.parity.core_cells import CoreCell, core_cell
from matrix.parity.judgements import DEVIATES, EQUAL, REFUSED, Judgement, Judgements
from matrix.parity.points import Cover, Space

REPRODUCTION = "matrix.kit.parity.reproduce:"  # what the `run` of a parity case begins with


@dataclass(frozen=True)
class CoreResult:
    """What a campaign has of one core: the causes, the points judged now and those equal, and what is not covered.

    `asked` are the judgements of the layouts that the user named.
    """

    core: str
    base: str
    causes: tuple[Cause, ...] = ()
    judged: int = 0
    equal: int = 0
    uncovered: int = 0
    asked: tuple[Judgement, ...] = ()
    seconds: float = 0.0

    @property
    def deviates(self) -> bool:
        """Whether a number is not that of one rank, beyond what is only suspected or known."""
        breaks = any(cause.deviates and cause.certainty.is_break for cause in self.causes)
        return breaks or any(judgement.outcome == DEVIATES for judgement in self.asked)

    @property
    def decided(self) -> bool:
        """Whether at least one comparison came to an end."""
        return self.equal > 0 or any(judgement.outcome in (EQUAL, DEVIATES) for judgement in self.asked)


@dataclass
class Campaign:
    """Judges points in cores. `say` receives progress, `clock` is in seconds."""

    catalog: Catalog
    folder: Path
    seed: int
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    entries: Mapping[str, Point] = field(default_factory=dict)

    @contextmanager
    def judging(self, source: str) -> Iterator[tuple[CoreCell, JudgePoint]]:
        """Give the cell of a core, and what judges a point there, or knows its judgement from before."""
        log = self.folder / f"{Path(source).name}.log"
        cell = core_cell(self.catalog, source, log, self.say)
        judgements = Judgements(self.folder, cell.release, f"{cell.base} {cell.identity}")
        with cell.judge(log) as process:

            def judge(point: Point, seed: int) -> Judgement:
                judgement = judgements.get(point, seed)
                if judgement is None:
                    judgement = process.judge(point, seed)
                    judgements.add(judgement)
                    self.say(f"{source}  {judgement.kind[:70]:30}  {point}  [{judgement.seconds:.1f} s]")
                return judgement

            yield cell, judge

    def asked(self, source: str, points: Sequence[Point]) -> CoreResult:
        """Return the judgements of some layouts in a core; one that the release does not have is refused."""
        started = self.clock()
        with self.judging(source) as (cell, judge):
            judgements = tuple(
                judge(point, self.seed)
                if point.supported(cell.release)
                else Judgement(point, self.seed, REFUSED, text="this release has no such option")
                for point in points
            )
        return CoreResult(source, cell.base, judged=len(points), asked=judgements, seconds=self.clock() - started)

    def searched(self, source: str, seconds: float) -> CoreResult:
        """Search a core for this time; what is found until a Ctrl-C is in the judgements."""
        started = self.clock()
        with self.judging(source) as (cell, judge):
            cover = Cover(Space(cell.release), self.seed)
            search = Search(judge, cover, lambda: self.clock() - started > seconds, self.entries)
            causes = []
            for cause in search:
                self.say(f"{source}  {cause.certainty.value}: {cause.point}")
                causes.append(cause)
        result = CoreResult(source, cell.base, tuple(causes), search.judged, search.equal, len(cover.uncovered))
        return replace(result, seconds=self.clock() - started)


def catalog_causes(catalog: Catalog) -> dict[str, Point]:
    """Return the layouts of the catalog's parity cases, by failure and case."""
    return {
        f"{failure.id} {case.name}": Point.of({k: v for k, v in case.arguments.items() if k != "seed"})
        for failure in catalog.failures
        for case in failure.case
        if case.run.startswith(REPRODUCTION)
    }


def first_and_last(point: Point, results: Sequence[CoreResult]) -> str:
    """Return the spans of the cores in which a layout deviates: "0.12.0 .. 0.18.2"."""
    spans: list[list[str]] = [[]]
    for result in results:
        if any(judgement.point == point and judgement.outcome == DEVIATES for judgement in result.asked):
            spans[-1].append(result.core)
        else:
            spans.append([])
    return ", ".join(span[0] if len(span) == 1 else f"{span[0]} .. {span[-1]}" for span in spans if span)
