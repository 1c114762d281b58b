"""Find the place in a history where the result changes, or the packages that carry it, with few rounds of probes. Pure.

A history has places 0, 1, ... in a partial order. If the old end is good, `search` returns the first bad place; if it
is bad, the first fixed place. It probes both ends first, then narrows down the candidates: a changed result keeps the
probed place and its ancestors, an unchanged result excludes them. An inconclusive place stays a candidate; if only such
places remain, the result is all of them.

`attribute` narrows the packages that differ between a good and a bad stack, by delta debugging. A probe takes a
mixture: the packages from the bad stack; the others stay as in the good one. Zeller's ddmin narrows them down to a set
that needs each of its packages. An inconclusive mixture (it can't be built, or fails with another failure) counts as
neither good nor bad: a package whose omission is inconclusive is reported as doubtful.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from matrix.ground.errors import MatrixError
from matrix.prove.bisection.noise import CERTAIN, ProbeResult, RunTest, Sample, Tally


@dataclass(frozen=True)
class Ancestry:
    """Places in topological order: every place comes after all of its ancestors.

    `below[i]` is a bit mask of i and all ancestors of i: the possible origins of a failure at i. Place 0 is the old
    end, an ancestor of all others; the last place is the new end, a descendant of all others.
    """

    below: tuple[int, ...]

    @classmethod
    def chain(cls, length: int) -> Ancestry:
        """Return the linear order of releases: each descends from the one before it."""
        return cls(tuple((2 << index) - 1 for index in range(length)))

    @classmethod
    def of_parents(cls, parents: Sequence[Sequence[int]], left_out: Collection[int] = ()) -> Ancestry:
        """Return the order of commits, given the parents of each; a parent precedes its children.

        Those that are `left_out` have no place, and connect the others.
        """
        below: list[int] = []
        below_of_places: list[int] = []
        for index, parents_of in enumerate(parents):
            mask = 0
            for parent in parents_of:
                mask |= below[parent]
            if index not in left_out:
                mask |= 1 << len(below_of_places)
                below_of_places.append(mask)
            below.append(mask)
        return cls(tuple(below_of_places))

    def parents(self, place: int) -> list[int]:
        """Return the nearest ancestors: those that are no ancestor of another one."""
        nearest, remaining = [], self.below[place] & ~(1 << place)
        while remaining:
            highest = remaining.bit_length() - 1
            nearest.append(highest)
            remaining &= ~self.below[highest]
        return nearest

    def __len__(self) -> int:
        return len(self.below)


def unchanged(parents: Sequence[Sequence[int]], content: Sequence[Hashable]) -> dict[int, int]:
    """Return the commits that behave as one of their parents, because they have its content: place -> that parent.

    None of them can be where a result changes. The first and the last commit are the ends, and never among them.
    """
    equal_parents = {}
    for index in range(1, len(parents) - 1):
        twins = [parent for parent in parents[index] if content[parent] == content[index]]
        if twins:
            equal_parents[index] = twins[0]
    return equal_parents


def places(mask: int) -> Iterator[int]:
    """Yield the places in a bit mask, lowest first."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _mask_of(chosen: Collection[int]) -> int:
    return sum(1 << index for index in set(chosen))


Probe = Callable[[Sequence[int]], Iterable[Sample]]  # runs these places together, each once


class ResultKind(str, Enum):
    """The kind of a search result."""

    FIRST_BAD = "first-bad"
    FIRST_FIXED = "first-fixed"
    AMBIGUOUS = "ambiguous"


@dataclass(frozen=True)
class Plan:
    """The parameters of a search.

    `at_once` is the number of probes per round, `confidence` the least confidence of a claim. After the search,
    `checks` unprobed places are probed to detect a history that changes more than once.
    """

    at_once: int = 1
    noise: RunTest = CERTAIN
    confidence: float = 0.95
    checks: int = 0

    def __post_init__(self) -> None:
        """Raise MatrixError for parameters out of range."""
        if self.at_once < 1 or self.checks < 0:
            raise MatrixError(
                "a search probes at least one place per round", got=f"{self.at_once}, {self.checks} checks"
            )
        if not 0 < self.confidence < 1:
            raise MatrixError("not a confidence", got=self.confidence, expected="more than 0, less than 1")


class WrongEndError(Exception):
    """An end of the history does not have the expected result: no search can start."""

    def __init__(self, place: int, seen: ProbeResult, expected: ProbeResult, runs: int) -> None:
        self.place, self.seen, self.expected, self.runs = place, seen, expected, runs
        super().__init__(f"place {place} is {seen.value}, not {expected.value}, after {runs} runs")


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    `candidates` holds the one place where the result changed, or, where `kind` is ambiguous, all places that it may
    be. `confidence` is a lower bound that assumes the stated noise and a history that changes once. `flips` are the
    pairs of results that no single change explains (changed, and unchanged later; or changed on two sides of a
    merge); the candidates are then those of the change nearest to the new end. `rounds` excludes ends and checks.
    """

    kind: ResultKind
    candidates: tuple[int, ...]
    confidence: float
    rounds: int
    tallies: Mapping[int, Tally]
    flips: tuple[tuple[int, int], ...] = ()

    @property
    def probes(self) -> int:
        """Return the number of runs."""
        return sum(tally.runs.total() for tally in self.tallies.values())


def search(
    order: Ancestry,
    probe: Probe,
    old: ProbeResult,
    plan: Plan | None = None,
    *,
    cheap: Collection[int] = (),
    suspects: Collection[int] = (),
    likelier: Callable[[], Sequence[Collection[int]]] = tuple,
) -> SearchResult:
    """Return where the result stops being `old` (good: the first bad place; bad: the first fixed one).

    `cheap` places (their environment exists, or their result is stored) are probed before all others. `suspects` are
    the probable places of the change: the first cuts separate them. `likelier` is called when both ends are known; it
    returns groups of further suspects, the likeliest last. Claims rest on results alone; a wrong suspect costs probes.
    Raises WrongEndError unless place 0 has the result `old` and the last place the opposite.
    """
    return _Search(order, probe, old, plan or Plan(), cheap, suspects, likelier).run()


class _Search:
    def __init__(
        self,
        order: Ancestry,
        probe: Probe,
        old: ProbeResult,
        plan: Plan,
        cheap: Collection[int],
        suspects: Collection[int],
        likelier: Callable[[], Sequence[Collection[int]]],
    ) -> None:
        self._order, self._probe, self._plan, self._cheap = order, probe, plan, cheap
        self._suspects, self._likelier = [_mask_of(suspects)], likelier
        self._old, self._new = old, ProbeResult.BAD if old is ProbeResult.GOOD else ProbeResult.GOOD
        self._tallies: dict[int, Tally] = {}
        self._left = 1 - plan.confidence  # the error that may still be spent
        self._last = len(order) - 1

    def run(self) -> SearchResult:
        ends = {0: self._old, self._last: self._new}
        for part in _parts(list(ends), self._plan.at_once):
            self._settle(part, self._share(max(self._last, 2)))
            for end in part:
                tally = self._tallies[end]
                if tally.settled is not ends[end]:
                    raise WrongEndError(end, tally.settled or ProbeResult.SKIP, ends[end], tally.runs.total())
        self._suspects += map(_mask_of, self._likelier())
        rounds = 0
        while batch := self._choice():
            self._settle(batch, self._share(self._candidates()[0].bit_count()))
            rounds += 1
        confidence = self._plan.confidence + self._left
        for part in _parts(self._places_to_check(), self._plan.at_once):
            self._settle(part, 1 - self._plan.confidence)  # a wrong check makes the result ambiguous, never wrong
        mask, flips = self._candidates()
        candidates = tuple(places(mask))
        sure = len(candidates) == 1 and not flips
        claim = ResultKind.FIRST_BAD if self._old is ProbeResult.GOOD else ResultKind.FIRST_FIXED
        return SearchResult(
            claim if sure else ResultKind.AMBIGUOUS, candidates, confidence, rounds, self._tallies, flips
        )

    def _settle(self, chosen: Sequence[int], error: float) -> None:
        """Probe these places, the unsettled ones again, until each is settled."""
        for point in chosen:
            self._tallies[point] = Tally(self._plan.noise)
        pending = list(chosen)
        while pending:
            for point, sample in zip(pending, self._probe(pending), strict=True):
                self._tallies[point].add(sample, error)
            pending = [point for point in pending if self._tallies[point].settled is None]
        doubtful = [self._tallies[point] for point in chosen if not self._tallies[point].certain]
        self._left -= error * sum(tally.settled is not ProbeResult.SKIP for tally in doubtful)

    def _share(self, candidates: int) -> float:
        """Return the allowed error of one more place: an even share of the rest, never all of it."""
        base = self._plan.at_once + 1
        return self._left / (self._plan.at_once * _logarithm(candidates, base) + 1)

    def _candidates(self) -> tuple[int, tuple[tuple[int, int], ...]]:
        """Return the places where the change may be (a bit mask), and the pairs that contradict a single change."""
        settled = {point: tally.settled for point, tally in self._tallies.items()}
        unchanged = [point for point, result in settled.items() if result is self._old]
        excluded = 0
        for point in unchanged:
            excluded |= self._order.below[point]
        mask, flips, nearest = self._order.below[self._last] & ~excluded, [], self._last
        for point in sorted((point for point, result in settled.items() if result is self._new), reverse=True):
            narrowed = mask & self._order.below[point]
            if narrowed:
                mask, nearest = narrowed, point
                continue
            later = [later_place for later_place in unchanged if self._order.below[later_place] >> point & 1]
            flips.append((point, min(later, default=nearest)))
        return mask, tuple(sorted(flips))

    def _choice(self) -> list[int]:
        """Return the places to probe next, which cut the candidates into even parts; [] at the end of the search."""
        mask, _ = self._candidates()
        weights = {
            place: self._weight(self._order.below[place] & mask) for place in places(mask) if place not in self._tallies
        }
        cheap_weights = {place: weight for place, weight in weights.items() if place in self._cheap}
        weights = cheap_weights or weights
        skipped = sum(mask >> place & 1 for place, tally in self._tallies.items() if tally.settled is ProbeResult.SKIP)
        selected: list[int] = []
        cuts = min(self._plan.at_once, max(mask.bit_count() - 1, 1))
        for target in _targets(self._weight(mask), cuts, skipped // self._plan.at_once):
            if weights:
                selected.append(min(weights, key=lambda place: (abs(weights[place] - target), place)))
                del weights[selected[-1]]
        return selected

    def _weight(self, mask: int) -> int:
        """Return the number of these candidates, where a suspect counts more than all others together."""
        suspected = [(mask & suspects).bit_count() for suspects in self._suspects]
        return mask.bit_count() + sum(count * int(len(self._order) ** k) for k, count in enumerate(suspected, 1))

    def _places_to_check(self) -> list[int]:
        """Return the unprobed parents of the result, and `checks` places spread over the other unprobed places.

        In a chain the parent has been probed; before a merge its result may be inferred from other places.
        """
        mask, _ = self._candidates()
        parents = self._order.parents(mask.bit_length() - 1) if mask.bit_count() == 1 else []
        near = [point for point in parents if point not in self._tallies]
        free = [point for point in range(len(self._order)) if point not in self._tallies and point not in near]
        count = min(self._plan.checks, len(free))
        return near + [free[(2 * number + 1) * len(free) // (2 * count)] for number in range(count)]


def _targets(total: int, cuts: int, fruitless: int) -> list[int]:
    """Return the target weight before each probe: even cuts.

    Each of the `fruitless` rounds (skips only) moves the cuts somewhere else, so that the search leaves a long
    inconclusive stretch after a few probes instead of crossing it place by place.
    """
    shift = (_spread(fruitless + 1) - 0.5) * 2 / (cuts + 1)
    return [math.floor(total * (cut / (cuts + 1) + shift)) for cut in range(1, cuts + 1)]


def _spread(number: int) -> float:
    """Return 1/2, 1/4, 3/4, 1/8, 5/8, ... for 1, 2, 3, ...: van der Corput's sequence."""
    value, part = 0.0, 0.5
    while number:
        value += part * (number & 1)
        number, part = number >> 1, part / 2
    return value


def _logarithm(count: int, base: int) -> int:
    """Return the least power of `base` that is `count` or more."""
    power = 0
    while base**power < count:
        power += 1
    return power


def _parts(chosen: Sequence[int], size: int) -> Iterable[Sequence[int]]:
    return (chosen[start : start + size] for start in range(0, len(chosen), size))


Packages = frozenset[str]
MixtureProbe = Callable[[Sequence[Packages]], Iterable[ProbeResult]]  # runs these mixtures together


class WrongStackError(Exception):
    """The good stack is not good, or the bad stack is not bad: attribution is impossible."""

    def __init__(self, taken: Packages, seen: ProbeResult) -> None:
        self.taken, self.seen = taken, seen
        super().__init__(f"the {'bad' if taken else 'good'} stack is {seen.value}")


@dataclass(frozen=True)
class Carrier:
    """Packages that together carry the failure; `doubtful` are those whose omission is inconclusive."""

    packages: Packages
    doubtful: Packages = frozenset()


@dataclass(frozen=True)
class Attribution:
    """Every set that carries the failure on its own (they share no package), and the result of each mixture."""

    carriers: tuple[Carrier, ...]
    probed: Mapping[Packages, ProbeResult]


def attribute(packages: Collection[str], probe: MixtureProbe, costly: Packages = frozenset()) -> Attribution:
    """Return the carriers of the failure. Raises WrongStackError, and MatrixError when nothing differs.

    The packages of which a mixture is `costly` are parted from the others first, and mixed last.
    """
    everything = frozenset(packages)
    if not everything:
        raise MatrixError("the two stacks do not differ", expected="at least one package at another version")
    results = _Results(probe)
    for mixture, expected in ((frozenset[str](), ProbeResult.GOOD), (everything, ProbeResult.BAD)):
        if results.of(mixture) is not expected:
            raise WrongStackError(mixture, results.of(mixture))
    carriers: list[Carrier] = []
    suspects = everything
    while suspects and results.of(suspects) is ProbeResult.BAD:  # a further carrier remains among the other packages
        carrier = _narrowed(sorted(suspects), results, costly)
        without = {package: results.of(carrier - {package}) for package in sorted(carrier)} if len(carrier) > 1 else {}
        carriers.append(
            Carrier(carrier, frozenset(package for package, result in without.items() if result is ProbeResult.SKIP))
        )
        suspects -= carrier
    return Attribution(tuple(carriers), results.known)


class _Results:
    """The results of a probe, each mixture probed once."""

    def __init__(self, probe: MixtureProbe) -> None:
        self._probe, self.known = probe, dict[Packages, ProbeResult]()

    def of(self, taken: Packages) -> ProbeResult:
        """Return the result of one mixture."""
        self.probe_all([taken])
        return self.known[taken]

    def probe_all(self, mixtures: Iterable[Packages]) -> None:
        """Probe the mixtures without a result, together."""
        missing = [mixture for mixture in dict.fromkeys(mixtures) if mixture not in self.known]
        if missing:
            self.known.update(zip(missing, self._probe(missing), strict=True))


def _narrowed(packages: Sequence[str], results: _Results, costly: Packages) -> Packages:
    """Return a subset of `packages` that carries the failure, and of which ddmin finds no smaller carrier."""
    current, parts = list(packages), 2
    while len(current) > 1:
        chunks = [frozenset(current[start::parts]) for start in range(parts)]
        if parts == 2 and costly & {*current} and {*current} - costly:
            chunks = [frozenset(current) - costly, frozenset(current) & costly]
        rests = [frozenset(current) - chunk for chunk in chunks] if parts > 2 else []
        results.probe_all([*chunks, *rests])
        smaller = next((subset for subset in (*chunks, *rests) if results.known[subset] is ProbeResult.BAD), None)
        if smaller is not None:
            parts = 2 if smaller in chunks else max(parts - 1, 2)
            current = [package for package in current if package in smaller]
        elif parts >= len(current):
            break
        else:
            parts = min(2 * parts, len(current))
    return frozenset(current)
