"""Which points a search judges, in which order: a pairwise cover, seeded. Pure.

The array is grown point by point, since what a judged point shows changes what is worth judging: a refused combination
and a known cause are left out of all later points. The first points cover the most pairs, so a budget may end it early.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from random import Random
from typing import Final

from matrix.kit.parity.factors import Point, Value, factors

CANDIDATES: Final = 10  # points from which the one that covers the most pairs is taken
DENSITY: Final = 0.2  # of the factors that are chosen beside a pair; dense points meet several refusals at once
REPAIRS: Final = 12  # changes that make a point possible
TRIES: Final = 8  # points that do not cover a pair, before it counts as impossible
SIZES: Final = ("tp", "pp", "cp", "dp", "ep", "etp", "micro_batches", "vpp", "layers")
RANKS: Final = ("tp", "pp", "cp", "dp")
Choice = tuple[str, Value]


def contains(point: Point, cause: Point) -> bool:
    """Return whether a point has all that a cause needs; a larger size has what a smaller one has."""
    return bool(cause.chosen) and all(_reaches(point[name], value, name) for name, value in cause.chosen)


def _reaches(value: Value, needed: Value, name: str) -> bool:
    larger = name in SIZES and not isinstance(value, str) and not isinstance(needed, str) and value >= needed
    return value == needed or larger


@dataclass
class Space:
    """The points that a release has, without those that contain a cause of `avoided`."""

    release: str
    avoided: list[Point] = field(default_factory=list)

    @cached_property
    def choices(self) -> dict[str, list[Value]]:
        """The values of each factor that the release has."""
        return {
            name: [value for value in factor.values if factor.supported(value, self.release)]
            for name, factor in factors().items()
        }

    def avoids(self, point: Point) -> bool:
        """Return whether the point contains an avoided cause."""
        return any(contains(point, cause) for cause in self.avoided)

    def repaired(self, point: Point, fixed: Collection[str], random: Random) -> Point | None:
        """Return a possible point that differs as little as possible; None where the fixed factors exclude one."""
        for _ in range(REPAIRS):
            problems = point.problems()
            if not problems:
                return None if self.avoids(point) else point
            free = [
                name for name in dict.fromkeys(n for problem in problems for n in problem.factors) if name not in fixed
            ]
            changes = [
                point.changed(**{name: value}) for name in free for value in self.choices[name] if value != point[name]
            ]
            best = min((len(change.problems()) for change in changes), default=len(problems))
            if best >= len(problems):
                return None
            point = random.choice([change for change in changes if len(change.problems()) == best])
        return None


@dataclass
class Cover:
    """Yields points until each pair of choices was judged. `judged` marks what a point has shown."""

    space: Space
    seed: int
    uncovered: set[frozenset[Choice]] = field(init=False)

    def __post_init__(self) -> None:
        choices = [[(name, value) for value in values] for name, values in self.space.choices.items()]
        pairs = ((one, other) for left, right in combinations(choices, 2) for one in left for other in right)
        self._tries: dict[frozenset[Choice], int] = {}
        self.uncovered = {frozenset(pair) for pair in pairs}
        self._left = sorted(self.uncovered, key=sorted_text)
        self._random = Random(self.seed)  # noqa: S311

    def judged(self, point: Point) -> None:
        """Count the pairs of a point as covered."""
        self.uncovered -= set(map(frozenset, combinations(point.items(), 2)))

    def __iter__(self) -> Iterator[Point]:
        """Yield the plain point, then the next best one, again and again."""
        yield Point()
        while self._left:
            candidates = [point for _ in range(CANDIDATES) if (point := self._candidate())]
            if candidates:
                yield max(candidates, key=self._gain)
            self._left = [pair for pair in self._left if pair in self.uncovered]

    def _gain(self, point: Point) -> int:
        return sum(frozenset(pair) in self.uncovered for pair in combinations(point.items(), 2))

    def _candidate(self) -> Point | None:
        """Return a possible point with an uncovered pair; None where a random one can't be made possible."""
        pair = self._random.choice(self._left)
        self._tries[pair] = self._tries.get(pair, 0) + 1
        fixed = dict(pair)
        base = self.space.repaired(Point.of(fixed), fixed, self._random)
        base = base and divided(self.space, base, fixed, self._random)
        point = base and denser(self.space, base, DENSITY, self._random)
        if point is None and self._tries[pair] >= TRIES:
            self.uncovered.discard(pair)
        return point


def divided(space: Space, point: Point, fixed: Collection[str], random: Random) -> Point | None:
    """Return the point on more than one rank where that is possible: on one, little can deviate."""
    kinds = [name for name in RANKS if name not in fixed]
    for name in random.sample(kinds, len(kinds)) if point.ranks == 1 else ():
        if several := space.repaired(point.changed(**{name: 2}), {*fixed, name}, random):
            return several
    return point if point != point.reference() else None


def sorted_text(pair: frozenset[Choice]) -> list[str]:
    """Return an order of pairs that does not depend on hashes."""
    return sorted(map(str, pair))


def denser(space: Space, point: Point, density: float, random: Random) -> Point:
    """Return the point with further random choices; each is left out where it makes the point impossible."""
    names = [name for name, values in space.choices.items() if len(values) > 1 and name not in dict(point.chosen)]
    random.shuffle(names)
    for name in names:
        if random.random() < density:
            values = [value for value in space.choices[name] if value != point[name]]
            fixed = {*dict(point.chosen), name}
            point = space.repaired(point.changed(**{name: random.choice(values)}), fixed, random) or point
    return point
