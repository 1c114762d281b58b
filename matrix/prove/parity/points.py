"""Which points a search judges, in which order, and how it shrinks what is not equal to its cause. Pure.

A seeded pairwise cover grows point by point, since what a judged point shows changes what is worth judging: a refused
combination and a known cause are left out of all later points. The first points cover the most pairs, so a budget may
end it early.

What a cell's process answered of points is kept append-only: a second search judges only what changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from functools import cache, cached_property
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any, Final

from matrix import PACKAGE
from matrix.ground.catalog.regular_file import UnreadableError, read_regular_text
from matrix.ground.errors import MatrixError
from matrix.kit.parity.factors import FLOAT64, Deviation, Point, Value, factors
from matrix.prove.store.paths import make_folder, unwritable

KIT: Final = PACKAGE / "kit"
EQUAL: Final = "equal"
DEVIATES: Final = "deviates"
REFUSED: Final = "refused"
LASTING: Final = (EQUAL, DEVIATES, REFUSED, "no number")  # any other outcome may be of the machine at that time


@dataclass(frozen=True)
class PointResult:
    """One answer. `outcome` is one of matrix.kit.parity.campaign's, or `crashed`.

    `largest` is the largest relative difference.
    """

    point: Point
    seed: int
    outcome: str
    deviations: tuple[Deviation, ...] = ()
    text: str = ""
    trace: str = ""
    largest: float = 0.0
    seconds: float = 0.0
    dtype: str = FLOAT64

    @property
    def kind(self) -> str:
        """What a smaller point must show as well: the outcome, with the first quantity or the class of the error."""
        symptom = self.deviations[0].quantity if self.deviations else re.sub(r"\d+", "N", self.text)[:60]
        return f"{self.outcome} {symptom}".strip()

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> PointResult:
        """Return the comparison of a row of JSON. Raises MatrixError, KeyError or TypeError for another one."""
        point = Point.of(row["point"])
        deviations = tuple(
            Deviation(**{**deviation, "ranks": tuple(deviation["ranks"])}) for deviation in row.get("deviations", ())
        )
        return cls(**{**row, "point": point, "deviations": deviations})

    def to_json(self) -> dict[str, Any]:
        """Return plain values, as `read` takes them."""
        return {**asdict(self), "point": dict(self.point.chosen)}


class PointResults:
    """The comparisons of one release, in a file named after it and the content of what judges."""

    def __init__(self, folder: Path, release: str, base: str) -> None:
        digest = hashlib.sha256(f"{content()} {release} {base}".encode()).hexdigest()[:10]
        self.path = folder / f"{Path(release).name}-{digest}.jsonl"
        self._known = {(row.point, row.seed): row for row in self._rows() if row.outcome in LASTING}

    def _rows(self) -> Iterator[PointResult]:
        try:
            lines = read_regular_text(self.path).splitlines()
        except UnreadableError:
            return
        for line in lines:
            try:
                yield PointResult.read(json.loads(line))
            except (MatrixError, ValueError, KeyError, TypeError):  # cut by a kill, or of a factor that is gone
                continue

    def get(self, point: Point, seed: int) -> PointResult | None:
        """Return what is known of a point."""
        return self._known.get((point, seed))

    def add(self, comparison: PointResult) -> None:
        """Write one line at the end: whole lines of several writers do not mix."""
        self._known[comparison.point, comparison.seed] = comparison
        make_folder(self.path.parent, exist_ok=True)
        line = json.dumps(comparison.to_json()) + "\n"
        try:
            with self.path.open("ab", buffering=0) as file:
                file.write(b"\n" * torn(self.path) + line.encode())
        except OSError as error:
            raise unwritable(self.path, error) from error

    def __len__(self) -> int:
        return len(self._known)


def torn(path: Path) -> bool:
    """Return whether the file ends within a line."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        return file.read() not in (b"", b"\n")


@cache
def content() -> str:
    """Return a digest of the kit, whose code judges."""
    digest = hashlib.sha256()
    for path in sorted(
        [*(KIT / "parity").iterdir(), KIT / "cpu_device.py", KIT / "te_extension.py", KIT / "absent_packages.py"]
    ):
        if path.is_file():
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


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
    """The points that a release has, with the choices of `given`, without those that contain a cause of `avoided`."""

    release: str
    avoided: list[Point] = field(default_factory=list)
    given: Point = field(default_factory=Point)

    @cached_property
    def choices(self) -> dict[str, list[Value]]:
        """The values of each factor that the release has; of a given one its value alone."""
        choices = {
            name: [value for value in factor.values if factor.supported(value, self.release) and not factor.given]
            for name, factor in factors().items()
        }
        choices |= {name: [self.given[name]] for name, values in choices.items() if not values}
        choices |= {name: [value] for name, value in self.given.chosen}
        for name, factor in factors().items():  # what one of them needs stands before it
            if not all(set(allowed) & set(choices[need]) for need, allowed in factor.needs.items()):
                choices[name] = choices[name][:1]
        return choices

    def avoids(self, point: Point) -> bool:
        """Return whether the point contains an avoided cause."""
        return any(contains(leg.point, cause) for cause in self.avoided for leg in point.legs)

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
        # The order must not depend on hashes.
        self._left = sorted(self.uncovered, key=lambda pair: sorted(map(str, pair)))
        self._random = Random(self.seed)  # noqa: S311

    def judged(self, point: Point) -> None:
        """Count the pairs of a point as covered."""
        self.uncovered -= set(map(frozenset, combinations(point.items(), 2)))

    def __iter__(self) -> Iterator[Point]:
        """Yield the plain point, or the given one, then the next best one, again and again."""
        yield self.space.given
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
        base = self.space.repaired(self.space.given.changed(**fixed), fixed, self._random)
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


JudgePoint = Callable[[Point, int], PointResult]
SECOND_SEED = 1_000_003  # further on: other weights and data


class Certainty(str, Enum):
    """What is known of a cause."""

    CONFIRMED = "confirmed"  # the smallest point deviates in the same quantity with other weights and data
    KNOWN = "known"  # a layout of an entry of the catalog, which deviates as stated
    VANISHED = "vanished"  # such a layout is equal
    SUSPECTED = "suspected"  # one seed alone, or the time ended, or what decides against rounding is refused
    NOISE = "noise"  # rounding: with one seed alone, or neither in float64 nor under a second layout
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
    counts as equal where it is with other weights and data, too. `exact` judges in float64 where `judge` measures its
    tolerance.
    """

    judge: JudgePoint
    space: Space
    seed: int
    over: Callable[[], bool] = lambda: False
    known: Mapping[Point, str] = field(default_factory=dict)
    covers: int = 1
    twice: bool = False
    exact: JudgePoint | None = None
    judged: int = 0
    equal: int = 0
    uncovered: int = 0  # pairs of the last cover

    def __iter__(self) -> Iterator[Cause]:
        causes = self._causes()
        for cause in causes:
            yield cause
            if not cause.point.chosen or contains(self.space.given, cause.point):  # all other points show the same
                return
            if cause.certainty not in (Certainty.VANISHED, Certainty.NOISE):
                self.space.avoided.append(cause.point)

    def _causes(self) -> Iterator[Cause]:
        for point, entry in self.known.items():
            if self.over():
                return
            comparison = self._both(point)
            certainty = {DEVIATES: Certainty.KNOWN, EQUAL: Certainty.VANISHED}.get(comparison.outcome)
            if certainty:
                yield Cause(point, certainty, comparison, entry)
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
            return Cause(point, certainty, comparison)
        return Cause(small, self._certainty(first, point), first)

    def _certainty(self, first: PointResult, point: Point) -> Certainty:
        if first.outcome == REFUSED:
            return Certainty.REFUSED
        if first.outcome != DEVIATES:
            return Certainty.UNDECIDED
        again = None if self.over() else self._judge(first.point, True)  # else it may not be the smallest
        return certainty(first, again, None if self.exact is None else self._elsewhere(first, point, self.exact))

    def _elsewhere(self, first: PointResult, point: Point, exact: JudgePoint) -> Iterator[PointResult]:
        yield from [self._judge(point)] * (point != first.point)  # it was shrunk from this one
        yield exact(first.point, self.seed)


def certainty(first: PointResult, again: PointResult | None, elsewhere: Iterable[PointResult] | None) -> Certainty:
    """Return what is known of a deviation.

    `again` is the comparison with other weights and data, None where the time ended. `elsewhere` are those of other
    layouts, and that in float64; None where the deviation itself is of float64, in which rounding shows nothing.
    """
    if again is None or again.kind != first.kind:
        return Certainty.SUSPECTED if again is None or elsewhere is None else Certainty.NOISE
    undecided = False
    for other in [first] if elsewhere is None else elsewhere:
        if other.kind == first.kind:
            return Certainty.CONFIRMED
        undecided |= other.outcome not in (EQUAL, DEVIATES)
    return Certainty.SUSPECTED if undecided else Certainty.NOISE


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
