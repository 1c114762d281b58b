"""Attribute a failure to the packages that differ between a good and a bad stack, by delta debugging. Pure.

A probe takes a mixture: the packages from the bad stack; the others stay as in the good one. Zeller's ddmin narrows
them down to a set that needs each of its packages. An inconclusive mixture (it can't be built, or fails with another
failure) counts as neither good nor bad: a package whose omission is inconclusive is reported as doubtful.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from matrix.ground.errors import MatrixError
from matrix.prove.bisection.noise import ProbeResult

Packages = frozenset[str]
Probe = Callable[[Sequence[Packages]], Iterable[ProbeResult]]  # runs these mixtures together


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


def attribute(packages: Collection[str], probe: Probe, costly: Packages = frozenset()) -> Attribution:
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

    def __init__(self, probe: Probe) -> None:
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
