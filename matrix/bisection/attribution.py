"""Which of the packages that differ between a good and a bad stack carry the failure: delta debugging. Pure.

A probe is given the packages that are taken from the bad stack; the others stay as in the good one. Zeller's ddmin
narrows them down to a set of which none can be left out. A mixture that says nothing (it can't be built, it fails
otherwise) is neither: where one of them stands in the way of leaving a package out, the set is not claimed to be
minimal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from matrix.bisection.noise import Seen
from matrix.errors import MatrixError

Packages = frozenset[str]
Probe = Callable[[Sequence[Packages]], Iterable[Seen]]  # asks these mixtures at once


class WrongStackError(Exception):
    """The good stack is not good, or the bad one not bad: nothing can be attributed."""

    def __init__(self, taken: Packages, seen: Seen) -> None:
        self.taken, self.seen = taken, seen
        super().__init__(f"the {'bad' if taken else 'good'} stack is {seen.value}")


@dataclass(frozen=True)
class Carrier:
    """Packages that together carry the failure; `doubtful` are those of which nobody could ask whether they must."""

    packages: Packages
    doubtful: Packages = frozenset()


@dataclass(frozen=True)
class Attribution:
    """Every set that carries the failure on its own (they share no package), and all that was asked."""

    carriers: tuple[Carrier, ...]
    asked: Mapping[Packages, Seen]


def attribute(packages: Collection[str], probe: Probe) -> Attribution:
    """Return what carries the failure. Raises WrongStackError, and MatrixError when nothing differs."""
    everything = frozenset(packages)
    if not everything:
        raise MatrixError("the two stacks do not differ", expected="at least one package at another version")
    asking = _Asking(probe)
    for taken, expected in ((frozenset[str](), Seen.GOOD), (everything, Seen.BAD)):
        if asking(taken) is not expected:
            raise WrongStackError(taken, asking(taken))
    carriers: list[Carrier] = []
    left = everything
    while left and asking(left) is Seen.BAD:  # what else carries it, without what is known to
        found = _narrowed(sorted(left), asking)
        without = {one: asking(found - {one}) for one in sorted(found)} if len(found) > 1 else {}
        carriers.append(Carrier(found, frozenset(one for one, seen in without.items() if seen is Seen.SKIP)))
        left -= found
    return Attribution(tuple(carriers), asking.known)


class _Asking:
    """The probe with a memory."""

    def __init__(self, probe: Probe) -> None:
        self._probe, self.known = probe, dict[Packages, Seen]()

    def __call__(self, taken: Packages) -> Seen:
        self.all([taken])
        return self.known[taken]

    def all(self, mixtures: Iterable[Packages]) -> None:
        """Ask what is not known yet, at once."""
        missing = [one for one in dict.fromkeys(mixtures) if one not in self.known]
        if missing:
            self.known.update(zip(missing, self._probe(missing), strict=True))


def _narrowed(packages: Sequence[str], asking: _Asking) -> Packages:
    """Return a part of `packages`, which carry the failure, of which no part that can be asked carries it alone."""
    current, parts = list(packages), 2
    while len(current) > 1:
        chunks = [frozenset(current[start::parts]) for start in range(parts)]
        rests = [frozenset(current) - chunk for chunk in chunks] if parts > 2 else []
        asking.all([*chunks, *rests])
        smaller = next((one for one in (*chunks, *rests) if asking.known[one] is Seen.BAD), None)
        if smaller is not None:
            parts = 2 if smaller in chunks else max(parts - 1, 2)
            current = [one for one in current if one in smaller]
        elif parts >= len(current):
            break
        else:
            parts = min(2 * parts, len(current))
    return frozenset(current)
