"""A history as the search sees it: places 0, 1, ..., and which places come before which."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Ancestry:
    """Places in an order in which every place stands behind all that come before it.

    `below[i]` is the set (a bit mask) of i and of all that come before i: what a failure at i may come from. Place 0 is
    the old end, before all others; the last place is the new end, behind all others.
    """

    below: tuple[int, ...]

    @classmethod
    def chain(cls, length: int) -> Ancestry:
        """Return the order of releases: each behind the one before it."""
        return cls(tuple((2 << place) - 1 for place in range(length)))

    @classmethod
    def of_parents(cls, parents: Sequence[Sequence[int]]) -> Ancestry:
        """Return the order of commits, given each one's parents; a parent stands in front of its children."""
        below: list[int] = []
        for place, before in enumerate(parents):
            mask = 1 << place
            for parent in before:
                mask |= below[parent]
            below.append(mask)
        return cls(tuple(below))

    def parents(self, place: int) -> list[int]:
        """Return the places that come right before this one."""
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
