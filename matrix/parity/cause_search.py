"""The search in one core: judge the cover's points, shrink what is not equal to its cause, avoid that cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from matrix.kit.parity.factors import Point
from matrix.parity.point_results import DEVIATES, EQUAL, REFUSED, PointResult
from matrix.parity.points import Cover
from matrix.parity.shrinking import smallest

JudgePoint = Callable[[Point, int], PointResult]
KnownAs = Callable[[Point], str]
SECOND_SEED = 1_000_003  # further on: other weights and data


class Certainty(str, Enum):
    """What is known of a cause."""

    CONFIRMED = "confirmed"  # the smallest point deviates in the same quantity with other weights and data
    SUSPECTED = "suspected"  # it did not
    KNOWN = "known"  # an entry of the catalog covers it
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

    `known_as` names the failure of the catalog that a point reaches, "" for none. `twice`: a point counts as equal
    where it is with other weights and data, too.
    """

    judge: JudgePoint
    cover: Cover
    over: Callable[[], bool] = lambda: False
    known_as: KnownAs = field(default_factory=lambda: nothing_known)
    twice: bool = False
    judged: int = 0
    equal: int = 0

    def __iter__(self) -> Iterator[Cause]:
        for point in self.cover:
            if self.over():
                return
            comparison = self._judge(point)
            if self.twice and comparison.outcome == EQUAL:
                comparison = self._judge(point, True)
            if comparison.outcome == EQUAL:
                self.equal += 1
                self.cover.judged(point)
                continue
            cause = self.cause(point, comparison)
            yield cause
            if not cause.point.chosen:  # not even the plain point is equal: all others show the same
                return
            self.cover.space.avoided.append(cause.point)

    def _judge(self, point: Point, second: bool = False) -> PointResult:
        self.judged += 1
        return self.judge(point, self.cover.seed + SECOND_SEED * second)

    def cause(self, point: Point, comparison: PointResult) -> Cause:
        """Return the cause of a comparison that is not equal."""

        def shows(smaller: Point) -> bool:
            return not self.over() and self._judge(smaller).kind == comparison.kind

        small = smallest(point, shows)
        first = self._judge(small)
        if first.outcome == EQUAL:  # it is not equal with the second seed alone
            certainty = Certainty.SUSPECTED if comparison.outcome == DEVIATES else Certainty.UNDECIDED
            return Cause(point, certainty, comparison, point)
        entry = self.known_as(small) if first.outcome == DEVIATES else ""
        return Cause(small, self._certainty(first, entry), first, point, entry)

    def _certainty(self, first: PointResult, entry: str) -> Certainty:
        if first.outcome == REFUSED:
            return Certainty.REFUSED
        if first.outcome != DEVIATES:
            return Certainty.UNDECIDED
        if entry:
            return Certainty.KNOWN
        again = not self.over() and self._judge(first.point, True).kind == first.kind  # else it may not be the smallest
        return Certainty.CONFIRMED if again else Certainty.SUSPECTED


def nothing_known(point: Point) -> str:
    """Name no failure."""
    return ""
