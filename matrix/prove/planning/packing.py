"""Which cases come first, and which get the GPUs of a machine. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from matrix.ground.catalog.failure import Expectation, Level
from matrix.ground.verdicts.planned import Planned


@dataclass(frozen=True)
class Demand:
    """What a case holds while it runs: GPUs, and bytes of the host's memory. `seconds` is the expected time.

    `card` are the bytes that it uses of one GPU, 0 for the whole GPU: only cases of one GPU share it.
    """

    gpus: int
    seconds: float = 0.0
    memory: int = 0
    card: int = 0

    @property
    def size(self) -> tuple[int, float]:
        """Return the sort key: the most GPUs first, then the longest, with reverse=True."""
        return self.gpus, self.seconds


@dataclass(frozen=True)
class Free:
    """What no case holds: GPUs by name, of `gpus` in all, and bytes of the host's memory, None for no limit."""

    names: tuple[str, ...]
    gpus: int
    memory: int | None = None


def grants(waiting: Sequence[Demand], running: Sequence[Demand], free: Free) -> dict[int, tuple[str, ...]]:
    """Return the GPUs of the cases that start now, by their index in `waiting`, which is in the order of arrival.

    The case with the most GPUs is first. A smaller one starts before it only if all cases that are smaller than it then
    hold no more GPUs than it leaves over, and no memory where it needs some: the first one starts at the latest when
    the cases of its size and above have ended, however long the smaller ones take.
    """
    granted: dict[int, tuple[str, ...]] = {}
    names, memory, holders, passed_over = free.names, free.memory, [*running], list[Demand]()
    for index in sorted(range(len(waiting)), key=lambda index: -waiting[index].gpus):
        demand = waiting[index]
        fits = demand.gpus <= len(names) and (memory is None or demand.memory <= memory)
        if fits and all(_spares(larger, demand, holders, free.gpus) for larger in passed_over):
            granted[index], names = names[: demand.gpus], names[demand.gpus :]
            memory = None if memory is None else memory - demand.memory
            holders.append(demand)
        else:
            passed_over.append(demand)
    return granted


def _spares(larger: Demand, demand: Demand, holders: Iterable[Demand], gpus: int) -> bool:
    """Return whether a case may start while a larger one waits, on a machine with this many GPUs."""
    smaller = sum(holder.gpus for holder in holders if holder.gpus < larger.gpus)
    return demand.gpus < larger.gpus <= gpus - smaller - demand.gpus and not (demand.memory and larger.memory)


@dataclass(frozen=True)
class Card:
    """A GPU that cases share: bytes that are free, and the number of cases that may hold it beside those on it."""

    name: str
    free: int
    places: int


def shared(waiting: Sequence[Demand], cards: Iterable[Card]) -> dict[int, str]:
    """Return the GPU of each case that starts now on a part of one, by its index in `waiting`, in order of arrival.

    A case goes to the GPU with the least memory that fits it, so that larger parts stay free; it never gets more than
    is left. Cases without a stated `card` get nothing here (`grants`). A case that does not fit is not passed over by
    later ones that would take the memory for which it waits: of its GPUs, the one with the most memory is kept for it.
    """
    left = {card.name: card for card in cards}
    kept, granted = set[str](), dict[int, str]()
    for index, demand in enumerate(waiting):
        if demand.gpus != 1 or not demand.card:
            continue
        fitting = [card for card in left.values() if card.free >= demand.card and card.places and card.name not in kept]
        if fitting:
            card = min(fitting, key=lambda card: (card.free, card.name))
            granted[index] = card.name
            left[card.name] = replace(card, free=card.free - demand.card, places=card.places - 1)
        elif waited := [card for card in left.values() if card.name not in kept]:
            kept.add(max(waited, key=lambda card: (card.free, card.name)).name)
    return granted


def ranks_of_value(
    items: Iterable[Planned], founding: Collection[str], able: Callable[[Planned], bool]
) -> dict[str, int]:
    """Return which cases of level gpu come first, by key, so that a time limit leaves out the fewest entries.

    0: one broken and one working case of each founding failure, the same case in two cells where there is one; 1: those
    of each other failure; 2: everything else, and what the machine is not `able` to run.
    """
    of_failures: dict[str, list[Planned]] = {}
    ranks = {}
    for item in items:
        ranks[item.key] = 2
        if item.level is Level.GPU and able(item):
            of_failures.setdefault(item.failure, []).append(item)
    for name, of_failure in of_failures.items():
        case = ""
        for expectation in (Expectation.BROKEN, Expectation.WORKS):
            if alike := [item for item in of_failure if item.expectation is expectation]:
                choice = next((item for item in alike if item.case == case), alike[0])
                case, ranks[choice.key] = choice.case, int(name not in founding)
    return ranks
