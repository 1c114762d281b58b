"""The process in a cell that judges points: started, given points, ended at a deadline, and started again."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from matrix.errors import MatrixError
from matrix.kit.parity.factors import Point
from matrix.parity.point_results import PointResult
from matrix.provision.commands import python_module
from matrix.store import scratch

MODULE: Final = "matrix.kit.parity.campaign"
IMPORT_S: Final = 120.0  # s for the imports of torch and megatron-core; they take 3 - 20 on a busy machine
RANKS_S: Final = 45.0  # s for the ranks of one point: upstream's collectives wait for ever
SLACK_S: Final = 10.0
CRASHES: Final = 3  # processes in a row that end without an answer


@dataclass
class PointProcess:
    """Judges points in one cell. `command` and `environment` start the process, whose stderr goes to `log`.

    A point whose process ends, or does not answer, has the outcome `crashed` or `timeout`; the next one gets another
    process.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    deadline: float = RANKS_S
    _process: subprocess.Popen[str] | None = field(default=None, init=False)
    _answered: bool = field(default=False, init=False)
    _crashes: int = field(default=0, init=False)

    def __enter__(self) -> PointProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def judge(self, point: Point, seed: int) -> PointResult:
        """Return the comparison of a point. Raises MatrixError when no process of this cell answers."""
        started = time.monotonic()
        process = self._process or self._start()
        task = {"point": dict(point.chosen), "seed": seed, "deadline": self.deadline}
        limit = 2 * self.deadline + SLACK_S + (0 if self._answered else IMPORT_S)  # the reference and the layout
        try:
            assert process.stdin
            assert process.stdout
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()
            line = _line(process.stdout, limit)
        except BrokenPipeError:
            line = ""
        if line and line.endswith("\n"):
            self._answered, self._crashes = True, 0
            return PointResult.read(json.loads(line))
        late = line is None
        self.end()
        if not late:
            self._crashes += 1
        if self._crashes >= CRASHES or (not self._answered and not late):
            raise MatrixError(
                "the process that judges points ends without an answer", where=str(self.log), got=str(point)
            )
        outcome, text = ("timeout", f"no answer within {limit:.0f} s") if late else ("crashed", "the process ended")
        return PointResult(point, seed, outcome, text=text, seconds=time.monotonic() - started)

    def _start(self) -> subprocess.Popen[str]:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                bufsize=1,
                env={**self.environment, **scratch.environment()},
                start_new_session=True,  # so that a Ctrl-C ends this process first
            )
        self._answered = False
        return self._process

    def end(self) -> None:
        """End the process and its ranks, which follow it."""
        if self._process is None:
            return
        process, self._process = self._process, None
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream:
                with suppress(BrokenPipeError):
                    stream.close()


def _line(stream: IO[str], seconds: float) -> str | None:
    """Return the next line, "" at the end of the stream, None when nothing comes within the time."""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        return stream.readline() if selector.select(seconds) else None


def command(python: Path, project: Path) -> list[str]:
    """Return the command of the process, at a low priority: it fills the time that others leave."""
    return ["nice", "-n", "10", *python_module(python, MODULE, folder=project)]
