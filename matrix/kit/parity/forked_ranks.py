"""Fork ranks from this process, run one body after the other in all of them, and end them all."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Final, NoReturn

from matrix.kit.parity.tiny_model import UnsupportedError
from matrix.kit.rank import renew_threads

ANSWERS: Final = ("harness", "memory", "upstream")  # origins of a failure that is the reason, whatever its peers raise
# s for the peers of a rank that lost its connection, or was killed, to end with exceptions of their own
GRACE_S: Final = 3.0
PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
SELF: Final = f"{os.sep}matrix{os.sep}"
UPSTREAM: Final = f"{os.sep}megatron{os.sep}core{os.sep}"
TRANSPORT: Final = f"{os.sep}torch{os.sep}distributed{os.sep}"
CHECKPOINT: Final = f"{TRANSPORT}checkpoint{os.sep}"  # refuses what upstream gives it: no rank's connection is lost
# Classes of torch and Python, and texts of torch, CUDA (also in NCCL's) and cuBLAS.
OUT_OF_MEMORY: Final = ("OutOfMemoryError", "MemoryError", "can't allocate memory", "out of memory", "ALLOC_FAILED")
LOST: Final = ("Connection reset by peer", "Connection closed by peer")  # gloo's, also where upstream waits itself
ABSENT_KERNEL: Final = "not implemented for"  # torch: "histogram_cpu" not implemented for 'Long'
ORDER: Final = ("harness", "memory", "upstream", "killed", "timeout", "transport")  # the likely cause first


@dataclass(frozen=True)
class RankFailure:
    """Why a rank ended without its result.

    `origin` is "upstream", "harness" (this project), "memory" (there is none left), "transport" (torch.distributed:
    mostly a peer that ended), "killed" or "timeout".
    """

    rank: int
    origin: str
    text: str
    trace: str = ""


Body = Callable[[int], None]  # takes the number of the rank; it is pickled


@dataclass
class Ranks:
    """Processes that run one body after the other, until one fails, `end` is called, or this process is killed.

    `home` is a folder that they have while they live, `bodies` the number of those that were begun.
    """

    pids: list[int] = field(default_factory=list)
    connections: list[Connection] = field(default_factory=list)
    home: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="parity-")))
    bodies: int = 0

    @classmethod
    def forked(cls, size: int, become: Callable[[int, Connection], NoReturn]) -> Ranks:
        """Return so many ranks; `become`, which ends in `serve`, is called in each."""
        sys.stdout.flush()
        sys.stderr.flush()
        ranks, parent = cls(), os.getpid()
        for rank in range(size):
            ours, theirs = Pipe()
            pid = os.fork()
            if pid == 0:
                _child(ranks.pids[0] if ranks.pids else 0, parent, partial(become, rank, theirs))
            theirs.close()
            ranks.connections.append(ours)
            ranks.pids.append(pid)
            with contextlib.suppress(PermissionError, ProcessLookupError):  # the child does so, too; or has ended
                os.setpgid(pid, ranks.pids[0])
        return ranks

    def run(self, body: Body, folder: Path, deadline_s: float, grace_s: float = GRACE_S) -> list[RankFailure]:
        """Call `body` in each rank; return the failures, the likely cause first. All ranks end with the first.

        Output goes to rank-N.log in `folder`.
        """
        self.bodies += 1
        for connection in self.connections:
            with contextlib.suppress(OSError):  # the rank has ended, as is seen below
                connection.send((body, folder))
        answers, late = self._answers(deadline_s, grace_s)
        if len(answers) == len(self.pids) and not any(answers.values()):
            return []
        for rank, status in enumerate(self.end()):
            answers.setdefault(rank, [_silent(rank, status, late)])
        failures = [row for rows in answers.values() for row in rows]
        return sorted(failures, key=lambda row: (ORDER.index(row.origin), row.rank))

    def _answers(self, deadline_s: float, grace_s: float) -> tuple[dict[int, list[RankFailure]], bool]:
        """Return what ranks answer until `grace_s` after one failed, and whether the deadline passed first."""
        end, failed = time.monotonic() + deadline_s, False
        answers: dict[int, list[RankFailure]] = {}
        with contextlib.ExitStack() as closing:
            running = {rank: (self.connections[rank], os.pidfd_open(pid)) for rank, pid in enumerate(self.pids)}
            for _, descriptor in running.values():
                closing.callback(os.close, descriptor)
            while running and (seconds := end - time.monotonic()) > 0:
                ready = wait([handle for handles in running.values() for handle in handles], seconds)
                for rank in [rank for rank, handles in running.items() if not {*handles}.isdisjoint(ready)]:
                    del running[rank]
                    answer = _received(self.connections[rank])
                    if answer is not None:
                        answers[rank] = answer
                    if answer != []:
                        failed, decided = True, any(row.origin in ANSWERS for row in answer or ())
                        end = min(end, time.monotonic() + (0.0 if decided else grace_s))
        return answers, bool(running) and not failed

    def end(self) -> list[int]:
        """Kill what still runs, reap all, return their exit statuses; a signal is negative."""
        if self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pids[0], signal.SIGKILL)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in self.pids]
        for connection in self.connections:
            connection.close()
        shutil.rmtree(self.home, ignore_errors=True)
        self.pids, self.connections = [], []
        return statuses


def run(size: int, body: Body, folder: Path, deadline_s: float, grace_s: float = GRACE_S) -> list[RankFailure]:
    """Call `body` in ranks that run nothing else; see Ranks.run."""
    ranks = Ranks.forked(size, serve)
    try:
        return ranks.run(body, folder, deadline_s, grace_s)
    finally:
        ranks.end()


def _received(connection: Connection) -> list[RankFailure] | None:
    """Return the answer of a rank, None of one that ended without."""
    answer: list[RankFailure] | None = None
    with contextlib.suppress(EOFError, OSError):
        answer = connection.recv() if connection.poll() else None
    return answer


def _silent(rank: int, status: int, late: bool) -> RankFailure:
    if late:
        return RankFailure(rank, "timeout", "the deadline passed")
    return RankFailure(rank, "transport" if status == -signal.SIGKILL else "killed", f"exit status {status}")


def origin(error: BaseException) -> str:
    """Return whose code raised an exception: of the innermost frame of this project, upstream or torch.distributed.

    A kernel that the CPU lacks is the harness's fault, memory that is missing nobody's.
    """
    text = f"{type(error).__name__}: {error}"
    if ABSENT_KERNEL in text:
        return "harness"
    if any(words in text for words in OUT_OF_MEMORY):
        return "memory"
    if any(words in text for words in LOST):
        return "transport"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if CHECKPOINT in frame.filename:
            continue
        for part, name in ((TRANSPORT, "transport"), (UPSTREAM, "upstream"), (SELF, "harness")):
            if part in frame.filename:
                return name
    return "harness"


def _child(leader: int, parent: int, become: Callable[[], NoReturn]) -> NoReturn:
    """Be a process of the group that ends with its parent."""
    try:
        os.setpgid(0, leader)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:  # else it was killed before the line above
            renew_threads()
            become()
    finally:
        os._exit(1)  # not exit: this is a copy of its parent, whose buffers and finalizers are not its own


def serve(rank: int, connection: Connection) -> NoReturn:
    """Be a rank: run the bodies that come until one fails."""
    try:
        failures: list[RankFailure] = []
        while not failures:
            failures = _failures(rank, connection)
            connection.send(failures)
    finally:
        os._exit(1)


def _failures(rank: int, connection: Connection) -> list[RankFailure]:
    """Run the next body; return what it raised."""
    try:
        body, folder = connection.recv()
        log = os.open(folder / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        body(rank)
    except BaseException as error:  # also SystemExit: a rank that exits has no result
        whose = "upstream" if isinstance(error, UnsupportedError) else origin(error)
        return [RankFailure(rank, whose, f"{type(error).__name__}: {error}", traceback.format_exc())]
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return []
