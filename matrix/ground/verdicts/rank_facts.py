"""What the lines of a log show of each rank: its collectives, its stack, its error; from them, why ranks wait."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from matrix.ground.verdicts.collectives import (
    CollectiveReport,
    Position,
    Standstill,
    grouped,
    name_all,
    reports_in,
    standstills,
    stated,
)
from matrix.ground.verdicts.outcome import Frame
from matrix.ground.verdicts.rank_stacks import StackReader, Stand, stand_of, standing

RANKS: Final = 16_384  # ranks of which facts are kept, so that a log of any text takes bounded memory
REPORTS: Final = 65_536  # lines of watchdogs that are kept
# What launchers write before the lines of a rank: torch itself and mpirun its rank, srun that of its task, which may be
# torchrun of a node, torchrun a local rank.
_RANK: Final = re.compile(r"\[rank(\d+)\]:|\[\d+,(\d+)\]<std")
_TASK: Final = re.compile(r"(?:^|:)(\d+):")
_LOCAL: Final = re.compile(r"\[default(\d+)\]:")


def rank_of(tags: str, log_rank: str = "") -> str:
    """Return the rank that a line's tags name, or else the rank of its file, "" where neither is known.

    A local rank of a task is named by both, "1/0".
    """
    if rank := _RANK.search(tags):
        return rank[1] or rank[2]
    task, local = _TASK.search(tags), _LOCAL.search(tags)
    if log_rank or not local:
        return log_rank or (task[1] if task else "")
    return f"{task[1]}/{local[1]}" if task else local[1]


class RankFacts:
    """Collects the facts of the ranks of one log, or of the logs of several ranks."""

    def __init__(self) -> None:
        self._ranks: dict[str, StackReader] = {}
        self._reports: list[CollectiveReport] = []
        self._stated: dict[tuple[str, tuple[str, ...]], Standstill] = {}
        self._waited: dict[str, tuple[int, Stand]] = {}
        self._failed: dict[str, tuple[int, str]] = {}
        self._rank, self._tagged = "", set[str]()

    def start(self, rank: str) -> None:
        """Start the log of a rank, "" for one of several ranks."""
        self._settle_rank()
        self._rank = rank
        self._tagged.clear()
        if rank:
            self.add_rank(rank)

    def _settle_rank(self) -> None:
        """Give the facts of a log to the rank that its lines are tagged with: the log may be named by a local rank."""
        if not self._rank or len(self._tagged) != 1:
            return
        (rank,) = self._tagged
        self.add_rank(rank).stacks.update(self._ranks.pop(self._rank).finished())
        if self._rank in self._waited:
            self._waited.setdefault(rank, self._waited.pop(self._rank))
        if self._rank in self._failed:
            self._failed.setdefault(rank, self._failed.pop(self._rank))

    def add_rank(self, rank: str) -> StackReader:
        """Add a rank of which a line was read, and return what reads its stacks."""
        if rank not in self._ranks and len(self._ranks) < RANKS:
            self._ranks[rank] = StackReader()
        return self._ranks.get(rank) or StackReader()

    def take(self, line: int, text: str, rank: str) -> None:
        """Process one line of a rank ("": not known which), without its prefix."""
        self.add_rank(rank).take(line, text)
        if rank != self._rank:
            self._tagged.add(rank)
        if len(self._reports) < REPORTS:
            self._reports += reports_in(line, text, rank)
        for standstill in stated(line, text, rank):
            self._stated.setdefault((standstill.text, standstill.ranks), standstill)

    def add_error(self, line: int, rank: str, what: str, frames: tuple[Frame, ...], *, follows: bool) -> None:
        """Add an exception or crash of a rank; `follows`: the rank waited for another one in vain, or lost it."""
        stand = stand_of(frames[::-1])
        if follows and stand and rank:
            self._waited.setdefault(rank, (line, stand))
        elif not follows and rank:
            self._failed.setdefault(rank, (line, what))

    def standstills(self, root_rank: int | None = None) -> list[Standstill]:
        """Return why ranks wait, what names ranks first. `root_rank` is the one that the launcher saw fail first."""
        self._settle_rank()
        answers = [*self._stated.values(), *standstills(self._reports, self._numbered()), *self._by_stacks(root_rank)]
        order = list(Position)
        return sorted(answers, key=lambda standstill: (order.index(standstill.position), standstill.line))

    def _numbered(self) -> list[str]:
        return [rank for rank in self._ranks if rank.isdigit()]

    def _by_stacks(self, root_rank: int | None) -> Iterator[Standstill]:
        """Yield how the ranks stand to each other by their stacks, or else by the errors of those that waited."""
        failed = [rank for rank in self._failed if rank not in self._waited]
        if len(stacks := self._stacks()) > 1 and (by_stacks := standing(stacks)):
            yield by_stacks
        elif self._waited and failed:
            line, what = min(self._failed[rank] for rank in failed)
            waits = grouped({rank: stand for rank, (_, stand) in self._waited.items()}, str)
            waited = "; ".join(f"{name_all(ranks)} in {stand}" for stand, ranks in waits.items())
            yield Standstill(
                Position.FAILED, tuple(failed), f"{name_all(failed)}: {what}; waited for it: {waited}", line
            )
        elif self._waited:
            silent = [rank for rank in self._numbered() if rank not in self._waited]
            silent = [str(root_rank)] if str(root_rank) in silent else silent
            if by_errors := standing(self._waited, silent):
                yield by_errors

    def _stacks(self) -> dict[str, tuple[int, Stand]]:
        """Return the stack of each rank, or process where its rank is not known; of a rank's processes, the first."""
        stacks: dict[str, tuple[int, Stand]] = {}
        for rank, reader in self._ranks.items():
            for process, stack in reader.finished().items():
                stacks.setdefault(process if process.isdigit() or not rank else rank, stack)
        stacks.pop("", None)  # of an unknown process: dumps of one process at several times look alike
        return stacks
