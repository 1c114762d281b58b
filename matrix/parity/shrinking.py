"""The smallest point that still shows what a point showed: the cause. Pure; the judge is given."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from matrix.kit.parity.factors import Point, factors


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
