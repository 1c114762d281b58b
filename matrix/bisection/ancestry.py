"""The partial order of a history: places 0, 1, ... and the ancestors of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


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
        return cls(tuple((2 << place) - 1 for place in range(length)))

    @classmethod
    def of_parents(cls, parents: Sequence[Sequence[int]]) -> Ancestry:
        """Return the order of commits, given the parents of each; a parent precedes its children."""
        below: list[int] = []
        for place, before in enumerate(parents):
            mask = 1 << place
            for parent in before:
                mask |= below[parent]
            below.append(mask)
        return cls(tuple(below))

    def parents(self, place: int) -> list[int]:
        """Return the nearest ancestors: those that are no ancestor of another one."""
        found, rest = [], self.below[place] & ~(1 << place)
        while rest:
            highest = rest.bit_length() - 1
            found.append(highest)
            rest &= ~self.below[highest]
        return found

    def __len__(self) -> int:
        return len(self.below)


def places(mask: int) -> Iterator[int]:
    """Yield the places in a bit mask, lowest first."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
