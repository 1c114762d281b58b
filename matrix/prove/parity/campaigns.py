"""A campaign: cores one after the other, each with its own cell, comparisons and part of the time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from matrix.ground.catalog.failure import Expectation
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.stack import MCORE
from matrix.ground.errors import MatrixError
from matrix.kit.parity.factors import Point
from matrix.prove.parity.cause_search import Cause, CauseSearch, JudgePoint
from matrix.prove.parity.core_cells import CoreCell, core_cell
from matrix.prove.parity.points import DEVIATES, EQUAL, REFUSED, PointResult, PointResults, Space


@dataclass(frozen=True)
class CoreResult:
    """What a campaign has of one core: the causes, the points judged now and those equal, and what is not covered.

    `asked` are the comparisons of the layouts that the user named, `problem` is why there is no further one.
    """

    core: str
    base: str
    causes: tuple[Cause, ...] = ()
    judged: int = 0
    equal: int = 0
    uncovered: int = 0
    problem: str = ""
    asked: tuple[PointResult, ...] = ()
    seconds: float = 0.0

    @property
    def deviates(self) -> bool:
        """Whether a number is not that of one rank, beyond what is only suspected or known."""
        breaks = any(cause.deviates and cause.certainty.is_break for cause in self.causes)
        return breaks or any(comparison.outcome == DEVIATES for comparison in self.asked)

    @property
    def decided(self) -> bool:
        """Whether at least one comparison came to an end."""
        return self.equal > 0 or any(comparison.outcome in (EQUAL, DEVIATES) for comparison in self.asked)


@dataclass
class ParityRun:
    """Judges points in cores. `say` receives progress, `clock` is in seconds. `unaided`: the catalog is not asked.

    `covers` and `twice`: see CauseSearch.
    """

    catalog: Catalog
    folder: Path
    seed: int
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    unaided: bool = False
    covers: int = 1
    twice: bool = False

    @contextmanager
    def judging(self, source: str) -> Iterator[tuple[CoreCell, JudgePoint]]:
        """Give the cell of a core, and what judges a point there, or knows its comparison from before."""
        log = self.folder / f"{Path(source).name}.log"
        cell = core_cell(self.catalog, source, self.say)
        comparisons = PointResults(self.folder, cell.release, f"{cell.base} {cell.identity}")
        with cell.judge(log) as process:

            def judge(point: Point, seed: int) -> PointResult:
                comparison = comparisons.get(point, seed)
                if comparison is None:
                    comparison = process.judge(point, seed)
                    comparisons.add(comparison)
                    self.say(f"{source}  {comparison.kind[:70]:30}  {point}  [{comparison.seconds:.1f} s]")
                return comparison

            yield cell, judge

    def asked(self, source: str, points: Sequence[Point]) -> CoreResult:
        """Return the comparisons of some layouts in a core; one that the release does not have is refused."""
        started, base, comparisons, problem = self.clock(), "", [], ""
        try:
            with self.judging(source) as (cell, judge):
                base = cell.base
                for point in points:
                    lacking = PointResult(point, self.seed, REFUSED, text="this release has no such option")
                    comparisons.append(judge(point, self.seed) if point.supported(cell.release) else lacking)
        except MatrixError as error:
            problem = error.brief
        seconds = self.clock() - started
        return CoreResult(
            source, base, (), len(comparisons), asked=tuple(comparisons), seconds=seconds, problem=problem
        )

    def searched(self, source: str, seconds: float) -> CoreResult:
        """Search a core for this time; what is found until a Ctrl-C is in the comparisons."""
        started = self.clock()
        causes: list[Cause] = []
        result = CoreResult(source, "")
        try:
            with self.judging(source) as (cell, judge):
                known = {} if self.unaided else known_layouts(self.catalog, cell)
                space, over = Space(cell.release), lambda: self.clock() - started > seconds
                search = CauseSearch(judge, space, self.seed, over, known, self.covers, self.twice)
                for cause in search:
                    self.say(f"{source}  {cause.certainty.value}: {cause.point}")
                    causes.append(cause)
            result = CoreResult(source, cell.base, (), search.judged, search.equal, search.uncovered)
        except MatrixError as error:
            result = replace(result, problem=error.brief)
        return replace(result, causes=tuple(causes), seconds=self.clock() - started)


def known_layouts(catalog: Catalog, cell: CoreCell) -> dict[Point, str]:
    """Return the layouts that the catalog states to deviate in a cell, each with its failure."""
    stack = catalog.cell(cell.base, {MCORE: cell.release}).stack
    layouts = {
        Point.parse(layout): failure.id
        for failure in catalog.failures
        if failure.expectation(stack) is Expectation.BROKEN
        for way in failure.reached_by
        if way.matches(stack)
        for layout in way.layouts
    }
    return {point: id for point, id in layouts.items() if point.supported(cell.release)}


def first_and_last(point: Point, results: Sequence[CoreResult]) -> str:
    """Return the spans of the cores in which a layout deviates: "0.12.0 .. 0.18.2"."""
    spans: list[list[str]] = [[]]
    for result in results:
        if any(comparison.point == point and comparison.outcome == DEVIATES for comparison in result.asked):
            spans[-1].append(result.core)
        else:
            spans.append([])
    return ", ".join(span[0] if len(span) == 1 else f"{span[0]} .. {span[-1]}" for span in spans if span)
