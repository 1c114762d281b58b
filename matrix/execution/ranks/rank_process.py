"""The state of one rank while its job runs, and of the mpirun that started it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import Any

from matrix.catalog.codec import MalformedError, decode
from matrix.execution.ranks import mpirun
from matrix.execution.ranks.logs import Log
from matrix.verdicts.outcome import EVIDENCE, Raised, RankEnd


@dataclass(frozen=True)
class RankReport:
    """The report of a rank: its body returned `value`, raised `chain`, or could not start because it `lacks` something.

    One of the three is set; `returned` distinguishes the value None.
    """

    returned: bool = False
    value: Any = None
    chain: tuple[Raised, ...] = ()
    lacks: str = ""


def parse_report(line: bytes) -> RankReport | None:
    """Return the report in a line that a rank wrote, None if it is none: a body can write to any open descriptor."""
    try:
        report = json.loads(line)
        if "value" in report:
            return RankReport(returned=True, value=report["value"])
        if "raised" in report:
            return RankReport(chain=decode(tuple[Raised, ...], report["raised"]))
        return RankReport(lacks=decode(str, report["lacks"]))
    except (MalformedError, KeyError, TypeError, ValueError, RecursionError):
        return None


@dataclass
class RankProcess:
    """One rank: its process and the output received so far. Times are seconds since the start of the job."""

    rank: int
    process: BaseProcess | mpirun.ShimConnection
    log: Log
    report: RankReport | None = None
    stacks: bytearray = field(default_factory=bytearray)
    exit_code: int | None = None
    ended_at: float | None = None
    reported_at: float = 0.0
    stopped: bool = False
    ready: bool = False  # waits at its gate

    @property
    def failed(self) -> bool:
        """Return whether this rank raised, exited with an error, or ended without a value."""
        ended_badly = self.ended_at is not None and (self.exit_code != 0 or not self.report or not self.report.returned)
        return bool(self.report and self.report.chain) or ended_badly

    @property
    def trace(self) -> str:
        """Return the beginning of this rank's stacks, "" without any; its .stacks file has all of them."""
        return self.stacks[:EVIDENCE].decode(errors="replace")

    def end(self, now: float) -> RankEnd:
        """Return the end of the rank as a value."""
        report = self.report or RankReport()
        ended_at = now if self.ended_at is None else self.ended_at
        return RankEnd(
            rank=self.rank,
            exit_code=None if self.stopped else self.exit_code,
            chain=report.chain,
            returned=report.returned,
            stopped=self.stopped,
            seconds=self.reported_at if report.chain else ended_at,
            value=report.value,
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
