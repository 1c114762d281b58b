"""The history of one case over the nights: changes of its verdict, and flakes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from matrix.ground.catalog.failure import Level
from matrix.ground.verdicts.record import SILENT, Verdict

NIGHTS: Final = 60  # shown


@dataclass(frozen=True)
class PastResult:
    """The result of a case in an earlier run, as the history has it without the record.

    `number` increases from run to run. `content` is the verdict-cache key. `cached`: the verdict came from the cache,
    the case did not run. `cell` is the cell's id, `started` a time (UTC, ISO 8601).
    """

    number: int
    run: str
    verdict: Verdict
    seconds: float = 0.0
    content: str = ""
    cached: bool = False
    level: Level = Level.CPU
    cell: str = ""
    started: str = ""

    @property
    def ran(self) -> bool:
        """Return whether the case ran in that run."""
        return not self.cached and self.verdict not in SILENT

    def to_json(self) -> dict[str, str]:
        """Return what `megatrix check --json` prints of the last run of a failure at a level."""
        return {
            "level": self.level.value,
            "run": self.run,
            "started": self.started,
            "cell": self.cell,
            "verdict": self.verdict.value,
        }


Pasts = Mapping[str, Sequence[PastResult]]  # case key -> nights, oldest first
NO_PASTS: Final[Pasts] = MappingProxyType({})


@dataclass(frozen=True)
class Flakes:
    """Of `again` runs with the same content as the run before, `flipped` had another colour: no regression."""

    flipped: int
    again: int

    def __str__(self) -> str:
        if not self.again:
            return "never run twice with the same content"
        share = self.flipped / self.again
        return f"{self.flipped} of {self.again} runs with nothing changed came out otherwise ({share:.0%})"


def flakes(pasts: Sequence[PastResult]) -> Flakes:
    """Count the runs with the same content hash as the run before, and those whose colour differs."""
    ran = [past for past in pasts if past.ran and past.content]
    again = [(earlier, later) for earlier, later in pairwise(ran) if earlier.content == later.content]
    return Flakes(sum(earlier.verdict.colour != later.verdict.colour for earlier, later in again), len(again))


def turns(pasts: Sequence[PastResult]) -> list[tuple[PastResult, PastResult, bool]]:
    """Return each change of colour between nights that ran: before, after, and whether the content changed too."""
    ran = [past for past in pasts if past.ran]
    return [
        (earlier, later, not earlier.content or earlier.content != later.content)
        for earlier, later in pairwise(ran)
        if earlier.verdict.colour != later.verdict.colour
    ]
