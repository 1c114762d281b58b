"""One rank while its job runs: its process, output and stacks; and the mpirun that started it.

Its log has the bytes without secrets, beginning and end only, limited in size on disk and in memory.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final, Protocol

from matrix.ground.catalog.codec import MalformedError, decode
from matrix.ground.verdicts.outcome import EVIDENCE, Raised, RankEnd
from matrix.prove.execution.ranks import mpirun
from matrix.prove.store.secrets import Masker, bare_bytes

HEAD: Final = 2**20  # bytes kept from the beginning; a save-and-load on megatron-core wrote 14 kB
TAIL: Final = 2**20  # bytes kept from the end, where the error message of a crash is


class Log:
    """A file at `path` that keeps the first `head` and the last `tail` bytes written to it.

    The lines of the head are written at once, the tail when the log is closed; a line between them counts the bytes
    left out. Secrets are masked before anything is written: `secrets`, and what looks like one. Only what is kept is
    searched for them, so a log of any size costs the same.
    """

    def __init__(self, path: Path, head: int = HEAD, tail: int = TAIL, secrets: Sequence[str] = ()) -> None:
        self.path, self._room, self._keep, self._secrets = path, head, tail, secrets
        self._masker = Masker(secrets)
        self._file = path.open("wb", buffering=0)
        self._tail = bytearray()  # as it was received
        self._left_out = 0

    def write(self, chunk: bytes) -> None:
        """Add output."""
        if self._room:
            chunk = self._put(self._masker.take(chunk))
            chunk += b"" if self._room else self._masker.raw()
        self._tail += chunk
        # Cut at twice the size, not at every write: many small writes then share one copy.
        if len(self._tail) > 2 * self._keep:
            self._cut()

    def close(self) -> None:
        """Write the tail and close the file; a second call does nothing."""
        if self._file.closed:
            return
        self._tail = bytearray(self._put(self._masker.rest()) + bare_bytes(bytes(self._tail), self._secrets))
        self._cut()
        with self._file:
            if self._left_out:
                self._file.write(b"\n[... %d bytes left out ...]\n" % self._left_out)
            self._file.write(self._tail)

    def _put(self, masked: bytes) -> bytes:
        """Write to the head what it has room for; return what follows."""
        self._file.write(masked[: self._room])
        beyond, self._room = masked[self._room :], max(0, self._room - len(masked))
        return beyond

    def _cut(self) -> None:
        surplus = max(0, len(self._tail) - self._keep)
        del self._tail[:surplus]
        self._left_out += surplus


def end_of(path: Path, limit: int = EVIDENCE) -> str:
    """Return the last `limit` bytes of a file as text; invalid UTF-8 is replaced by U+FFFD."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - limit))
        return file.read().decode(errors="replace")


CHUNK: Final = 65_536  # bytes per read: the default capacity of a pipe
PIPE: Final = 2**20  # largest capacity of a pipe in bytes (/proc/sys/fs/pipe-max-size)


@dataclass(frozen=True)
class RankReport:
    """The report of a rank: its body returned `value`, raised `chain`, or could not start because it `lacks` something.

    One of the three is set; `returned` distinguishes the value None.
    """

    returned: bool = False
    value: Any = None
    chain: tuple[Raised, ...] = ()
    lacks: str = ""
    used: Mapping[str, float] = field(default_factory=dict)


def parse_report(line: bytes) -> RankReport | None:
    """Return the report in a line that a rank wrote, None if it is none: a body can write to any open descriptor."""
    try:
        report = json.loads(line)
        if "value" in report:
            return RankReport(True, report["value"], used=decode(dict[str, float], report["used"]))
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
            used=report.used,
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


def spy_on(pids: Sequence[int]) -> list[subprocess.Popen[bytes]]:
    """Start `py-spy dump` on each process, output to a pipe; start nothing where py-spy is not on PATH.

    It does not need the process's cooperation, so it also reports one that blocks signals. It may need root (ptrace).
    """
    spy = shutil.which("py-spy")
    if spy is None:
        return []
    return [
        subprocess.Popen([spy, "dump", "--pid", str(pid)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for pid in pids
    ]


def answers(pid: int, number: signal.Signals = signal.SIGUSR1, proc: Path = Path("/proc")) -> bool:
    """Return whether a process has a handler for a signal; a signal without one would kill it."""
    try:
        caught = re.search(r"^SigCgt:\t([0-9a-f]+)$", (proc / str(pid) / "status").read_text(), re.MULTILINE)
    except OSError:
        return False
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def kernel_view(pid: int, proc: Path = Path("/proc")) -> str:
    """Return the kernel's report on an unresponsive process: state, blocked signals, wait channel."""
    try:
        status = dict(re.findall(r"^(\w+):\t(.*)$", (proc / str(pid) / "status").read_text(), re.MULTILINE))
        channel = (proc / str(pid) / "wchan").read_text()
    except OSError:
        return "the process is gone"
    return f"state {status.get('State')}, blocked signals {status.get('SigBlk')}, waits in {channel or '?'}"


class Readable(Protocol):
    """A pipe's end: a multiprocessing Connection, or the stdout of a subprocess."""

    def fileno(self) -> int: ...  # noqa: D102  (defined by Python)
    def close(self) -> None: ...  # noqa: D102


class Pump:
    """Passes the bytes of a pipe to `take`, one chunk per event, so that no rank can block the event loop."""

    def __init__(self, pipe: Readable, take: Callable[[bytes], object], selector: selectors.BaseSelector) -> None:
        self.finished = False
        self._pipe, self._take, self._selector = pipe, take, selector
        os.set_blocking(pipe.fileno(), False)
        selector.register(pipe.fileno(), selectors.EVENT_READ, self.read)

    def read(self) -> bool:
        """Read one chunk and return whether there was one. Closes the pipe at its end."""
        if self.finished:  # by an earlier event of the same select
            return False
        try:
            chunk = os.read(self._pipe.fileno(), CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._close()
            return False
        self._take(chunk)
        return True

    def drain(self) -> None:
        """Read the buffered bytes, but not an endless stream of new ones."""
        for _ in range(PIPE // CHUNK):
            if not self.read():
                return

    def finish(self) -> None:
        """Read the buffered bytes and close the pipe."""
        self.drain()
        if not self.finished:
            self._close()

    def _close(self) -> None:
        self.finished = True
        self._selector.unregister(self._pipe.fileno())
        self._pipe.close()
