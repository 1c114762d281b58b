"""The state of one rank while its job runs, and of the mpirun that started it."""

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
    """One rank: its process and the output received so far. Times are seconds since the start of the job.

    `message` is its report: {"value": ...}, {"raised": [...]}, {"lacks": ...}, or {} before the report arrives.
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
        """Return whether this rank raised, exited with an error, or ended without a value."""
        ended_badly = self.ended_at is not None and (self.exit_code != 0 or "value" not in self.message)
        return "raised" in self.message or ended_badly

    @property
    def trace(self) -> str:
        """Return the beginning of this rank's stacks, "" without any; its .stacks file has all of them."""
        return self.stacks[:EVIDENCE].decode(errors="replace")

    def end(self, now: float) -> RankEnd:
        """Return the end of the rank as a value."""
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
    """The mpirun of a job: its process, its log, and the handoff of its shims."""

    process: BaseProcess
    log: Log
    handoff: mpirun.Handoff
    ended: bool = False
