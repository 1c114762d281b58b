"""Fork the ranks of one point from this process, wait for them, and end them all."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from matrix.kit.parity.tiny_model import UnsupportedError

ANSWERS: Final = ("harness", "memory", "upstream")  # origins of a failure that is the reason, whatever its peers raise
GRACE_S: Final = (
    3.0  # s for the peers of a rank that lost its connection, or was killed, to end with exceptions of their own
)
PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
SELF: Final = f"{os.sep}matrix{os.sep}"
UPSTREAM: Final = f"{os.sep}megatron{os.sep}core{os.sep}"
TRANSPORT: Final = f"{os.sep}torch{os.sep}distributed{os.sep}"
CHECKPOINT: Final = f"{TRANSPORT}checkpoint{os.sep}"  # refuses what upstream gives it: no rank's connection is lost
# Classes of torch and Python, and texts of torch, CUDA (also in NCCL's) and cuBLAS.
OUT_OF_MEMORY: Final = ("OutOfMemoryError", "MemoryError", "can't allocate memory", "out of memory", "ALLOC_FAILED")
ABSENT_KERNEL: Final = "not implemented for"  # torch: "histogram_cpu" not implemented for 'Long'


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


def run(
    size: int, body: Callable[[int], None], folder: Path, deadline_s: float, grace_s: float = GRACE_S
) -> list[RankFailure]:
    """Call `body` with the number of each rank, in a process each; return the failures, the likely cause first.

    Output goes to rank-N.log in `folder`. No process is left when this returns, and none when this process is killed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pids: list[int] = []
    try:
        for rank in range(size):
            pid = os.fork()
            if pid == 0:
                _child(rank, pids[0] if pids else 0, body, folder)
            pids.append(pid)
            _join_group(pid, pids[0])
        late = _wait(pids, deadline_s, lambda rank: 0.0 if _is_answer(folder, rank) else grace_s)
    finally:
        statuses = _end(pids)
    failures = [_failure(rank, status, folder, late) for rank, status in enumerate(statuses) if status]
    order = ("harness", "memory", "upstream", "killed", "timeout", "transport")
    return sorted(failures, key=lambda row: (order.index(row.origin), row.rank))


def origin(error: BaseException) -> str:
    """Return whose code raised an exception: of the innermost frame of this project, upstream or torch.distributed.

    A kernel that the CPU lacks is the harness's fault, memory that is missing nobody's.
    """
    text = f"{type(error).__name__}: {error}"
    if ABSENT_KERNEL in text:
        return "harness"
    if any(words in text for words in OUT_OF_MEMORY):
        return "memory"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if CHECKPOINT in frame.filename:
            continue
        for part, name in ((TRANSPORT, "transport"), (UPSTREAM, "upstream"), (SELF, "harness")):
            if part in frame.filename:
                return name
    return "harness"


def _join_group(pid: int, leader: int) -> None:
    """Put a child into the process group of the ranks; it does so itself, too, whoever is first."""
    with contextlib.suppress(PermissionError, ProcessLookupError):  # it has ended
        os.setpgid(pid, leader)


def _child(rank: int, leader: int, body: Callable[[int], None], folder: Path) -> None:
    """Be a rank: never returns."""

    def logged(rank: int) -> None:
        parent = os.getppid()
        os.setpgid(0, leader)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was killed before the line above
            os._exit(1)
        log = os.open(folder / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        body(rank)

    end_after(rank, logged, folder)


def end_after(rank: int, body: Callable[[int], None], folder: Path) -> NoReturn:
    """Call the body of a rank, leave what it raised in `folder`, and end this process."""
    status = 1
    try:
        body(rank)
        status = 0
    except BaseException as error:  # also SystemExit: a rank that exits has no result
        whose = "upstream" if isinstance(error, UnsupportedError) else origin(error)
        row = {"origin": whose, "text": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        whole = folder / f"failure-{rank}.json"
        part = whole.with_suffix(".part")  # the end of its peers may kill this process meanwhile
        part.write_text(json.dumps(row), encoding="utf-8")
        part.rename(whole)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # not exit: this is a copy of its parent, whose buffers and finalizers are not its own


def _is_answer(folder: Path, rank: int) -> bool:
    """Return whether a rank that failed gives the reason: its peers, which wait for it, add none."""
    file = folder / f"failure-{rank}.json"
    return file.exists() and json.loads(file.read_text(encoding="utf-8"))["origin"] in ANSWERS


def _wait(pids: list[int], deadline_s: float, grace: Callable[[int], float]) -> bool:
    """Wait until all ranks ended, or `grace` seconds after one failed; return whether the deadline passed first."""
    end = time.monotonic() + deadline_s
    poll, running = select.poll(), {}
    failed = False
    for rank, pid in enumerate(pids):
        descriptor = os.pidfd_open(pid)
        running[descriptor] = rank
        poll.register(descriptor, select.POLLIN)
    try:
        while running and time.monotonic() < end:
            for descriptor, _ in poll.poll(max(0.0, end - time.monotonic()) * 1000):
                poll.unregister(descriptor)
                os.close(descriptor)
                rank = running.pop(descriptor)
                info: Any = os.waitid(os.P_PID, pids[rank], os.WEXITED | os.WNOWAIT)
                if info.si_status:
                    failed, end = True, min(end, time.monotonic() + grace(rank))
    finally:
        for descriptor in running:
            os.close(descriptor)
    return bool(running) and not failed


def _end(pids: list[int]) -> list[int]:
    """Kill what still runs, reap all, return their exit statuses; a signal is negative."""
    if pids:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pids[0], signal.SIGKILL)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def _failure(rank: int, status: int, folder: Path, late: bool) -> RankFailure:
    file = folder / f"failure-{rank}.json"
    if file.exists():
        return RankFailure(rank, **json.loads(file.read_text(encoding="utf-8")))
    if late:
        return RankFailure(rank, "timeout", "the deadline passed")
    return RankFailure(rank, "transport" if status == -signal.SIGKILL else "killed", f"exit status {status}")
