"""The partial order of a history: places 0, 1, ... and the ancestors of each."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
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
