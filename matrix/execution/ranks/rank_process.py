"""What is known of one rank while its job runs, and of the mpirun that started it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import Any

from matrix.execution.ranks import mpirun
from matrix.execution.ranks.logs import Log
from matrix.verdicts.outcome import EVIDENCE, RankEnd, raised_chain


@dataclass
class RankProcess:
    """One rank: its process, and what has come from it so far. Times in s since the start of the job.

    `message` is its report: {"value": ...}, {"raised": [...]}, {"lacks": ...}, or {} while it has said nothing.
    """

    rank: int
    process: BaseProcess | mpirun.ShimConnection
    log: Log
    message: Mapping[str, Any] = field(default_factory=dict)
    stacks: bytearray = field(default_factory=bytearray)
    exit_code: int | None = None
    ended_at: float | None = None
    reported_at: float = 0.0
    stopped: bool = False

    @property
    def failed(self) -> bool:
        """Return whether it is known that this rank did not do its work."""
        ended_badly = self.ended_at is not None and (self.exit_code != 0 or "value" not in self.message)
        return "raised" in self.message or ended_badly

    @property
    def trace(self) -> str:
        """Return the stacks of this rank as text, "" when it was not asked; the file beside its log has all of them."""
        return self.stacks[:EVIDENCE].decode(errors="replace")

    def end(self, now: float) -> RankEnd:
        """Return what is known of the rank's end."""
        chain = raised_chain(self.message.get("raised", ()))
        ended_at = now if self.ended_at is None else self.ended_at
        return RankEnd(
            rank=self.rank,
            exit_code=None if self.stopped else self.exit_code,
            chain=chain,
            returned="value" in self.message,
            stopped=self.stopped,
            seconds=self.reported_at if chain else ended_at,
            value=self.message.get("value"),
            log=str(self.log.path),
            stacks=self.trace,
        )


@dataclass
class LauncherProcess:
    """The mpirun of a job: its process and its log, and where its ranks come for their tasks."""

    process: BaseProcess
    log: Log
    handoff: mpirun.Handoff
    ended: bool = False
