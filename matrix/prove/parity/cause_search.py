"""The search in one core: judge the cover's points, shrink what is not equal to its cause, avoid that cause."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from matrix.kit.parity.factors import Point, factors
from matrix.prove.parity.points import DEVIATES, EQUAL, REFUSED, Cover, PointResult, Space

JudgePoint = Callable[[Point, int], PointResult]
SECOND_SEED = 1_000_003  # further on: other weights and data


class Certainty(str, Enum):
    """What is known of a cause."""

    CONFIRMED = "confirmed"  # the smallest point deviates in the same quantity with other weights and data
    SUSPECTED = "suspected"  # it did not
    KNOWN = "known"  # a layout of an entry of the catalog, which deviates as stated
    VANISHED = "vanished"  # such a layout is equal
    REFUSED = "refused"  # upstream's own error: no deviation
    UNDECIDED = "undecided"  # no answer, or the harness failed

    @property
    def is_break(self) -> bool:
        """Whether it is shown as a break: a suspicion is not."""
        return self in (Certainty.CONFIRMED, Certainty.KNOWN)


@dataclass(frozen=True)
class Cause:
    """The smallest point that shows what a point showed, with its comparison; `entry` is that of the catalog."""

    point: Point
    certainty: Certainty
    comparison: PointResult
    met: Point
    entry: str = ""

    @property
    def deviates(self) -> bool:
        """Whether numbers differ."""
        return self.comparison.outcome == DEVIATES


@dataclass
class CauseSearch:
    """Yields a Cause for each point that is not equal. `judge` keeps what it has judged; `over`: the time is up.

    `known` names the failure of the catalog for layouts that are stated to deviate. They are judged first, so that the
    points which follow have none of them. `covers`: so many covers are made, each with the next seed. `twice`: a point
    counts as equal where it is with other weights and data, too.
    """

    judge: JudgePoint
    space: Space
    seed: int
    over: Callable[[], bool] = lambda: False
    known: Mapping[Point, str] = field(default_factory=dict)
    covers: int = 1
    twice: bool = False
    judged: int = 0
    equal: int = 0
    uncovered: int = 0  # pairs of the last cover

    def __iter__(self) -> Iterator[Cause]:
        causes = self._causes()
        for cause in causes:
            yield cause
            if not cause.point.chosen:  # not even the plain point is equal: all others show the same
                return
            if cause.certainty is not Certainty.VANISHED:
                self.space.avoided.append(cause.point)

    def _causes(self) -> Iterator[Cause]:
        for point, entry in self.known.items():
            if self.over():
                return
            comparison = self._both(point)
            certainty = {DEVIATES: Certainty.KNOWN, EQUAL: Certainty.VANISHED}.get(comparison.outcome)
            if certainty:
                yield Cause(point, certainty, comparison, point, entry)
        for seed in range(self.seed, self.seed + self.covers):
            yield from self._uncovered_causes(Cover(self.space, seed))

    def _uncovered_causes(self, cover: Cover) -> Iterator[Cause]:
        self.seed = cover.seed
        for point in cover:
            self.uncovered = len(cover.uncovered)
            if self.over():
                return
            comparison = self._both(point)
            if comparison.outcome == EQUAL:
                self.equal += 1
                cover.judged(point)
            else:
                yield self.cause(point, comparison)
        self.uncovered = len(cover.uncovered)

    def _both(self, point: Point) -> PointResult:
        comparison = self._judge(point)
        return self._judge(point, True) if self.twice and comparison.outcome == EQUAL else comparison

    def _judge(self, point: Point, second: bool = False) -> PointResult:
        self.judged += 1
        return self.judge(point, self.seed + SECOND_SEED * second)

    def cause(self, point: Point, comparison: PointResult) -> Cause:
        """Return the cause of a comparison that is not equal."""

        def shows(smaller: Point) -> bool:
            return not self.over() and self._judge(smaller).kind == comparison.kind

        small = smallest(point, shows)
        first = self._judge(small)
        if first.outcome == EQUAL:  # it is not equal with the second seed alone
            certainty = Certainty.SUSPECTED if comparison.outcome == DEVIATES else Certainty.UNDECIDED
            return Cause(point, certainty, comparison, point)
        return Cause(small, self._certainty(first), first, point)

    def _certainty(self, first: PointResult) -> Certainty:
        if first.outcome == REFUSED:
            return Certainty.REFUSED
        if first.outcome != DEVIATES:
            return Certainty.UNDECIDED
        again = not self.over() and self._judge(first.point, True).kind == first.kind  # else it may not be the smallest
        return Certainty.CONFIRMED if again else Certainty.SUSPECTED


def smallest(point: Point, shows: Callable[[Point], bool]) -> Point:
    """Return a point that shows the same and from which nothing can be left out; `point` itself does show it.

    Halves are left out first, then quarters, then single choices: a cause of three among twelve takes about 15 points.
    """
    size = max(1, len(point.chosen) // 2)
    while True:
        for smaller in _smaller(point, size):
            if shows(smaller):
                point = smaller
                break
        else:
            if size == 1:
                return _lowered(point, shows)
            size = max(1, size // 2)


def _smaller(point: Point, size: int) -> Iterator[Point]:
    names = [name for name, _ in point.chosen]
    tried = {point}
    for start in range(0, len(names), size):
        smaller = without(point, names[start : start + size])
        if smaller is not None and smaller not in tried:
            tried.add(smaller)
            yield smaller


def without(point: Point, names: Collection[str]) -> Point | None:
    """Return the point with the defaults of some factors, and of what is impossible without them; None if it is."""
    point = Point.of({name: value for name, value in point.chosen if name not in names})
    while problems := point.problems():
        involved = {name for problem in problems for name in problem.factors}
        changes = [point.changed(**{name: factors()[name].default}) for name, _ in point.chosen if name in involved]
        best = min(changes, key=lambda change: len(change.problems()), default=None)
        if best is None:
            return None
        point = best
    return point


def _lowered(point: Point, shows: Callable[[Point], bool]) -> Point:
    """Return the point with the lowest sizes that show the same: two ranks instead of four.

    A word stays: another one that shows the same would leave this one for later points to meet again.
    """
    for name, value in point.chosen:
        values = factors()[name].values
        for lower in () if isinstance(value, str) else values[1 : values.index(value)]:
            changed = point.changed(**{name: lower})
            if not changed.problems() and shows(changed):
                point = changed
                break
    return point
