"""The inside of the fork-server: what it does before it serves, and how a process it forks becomes a rank.

multiprocessing's fork-server imports this module by its name, its one hook. The import acts only when REQUEST is in
the environment, that is: only there. matrix.execution.ranks.forkserver is the other side.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from matrix.errors import MatrixError
from matrix.execution.ranks.descendants import end_below
from matrix.execution.ranks.rank import work
from matrix.execution.ranks.timeouts import OVERTIME_S
from matrix.provision import kernel

REQUEST: Final = "MATRIX_FORK_SERVER"  # JSON: {"lifeline": path, "pythonpath": str | None, "path": [], "modules": []}
FRESH: Final = "import sys; sys.path[:] = {path!r}; from matrix.execution.ranks.rank import resume; resume({fds!r})"
# By it Open MPI (5.0.7) knows a job of Slurm's: it starts ranks by srun, and as many as the job has tasks.
SCHEDULED: Final = "SLURM_JOBID"


@dataclass
class ForkserverChild:
    """The fork-server, as it knows itself. `broken` maps a module to why its import failed (not: that it is absent)."""

    pid: int
    lifeline: int
    folder: Path
    broken: dict[str, str] = field(default_factory=dict)

    def let_go(self) -> None:
        """Close, in a rank just forked, what must not outlive the server or its owner.

        The lifeline's end tells the owner that the server died. The "alive" pipe's end tells the server that its
        owner died; multiprocessing hands it to every child, so that children can ask for children of their own:
        a rank that kept it would keep the server, and through it itself, alive after a kill -9 of the owner. The
        owner's resource tracker would complain, on the owner's stderr, about the semaphores of a rank that crashed:
        a rank that makes some starts a tracker of its own, which ends with it.
        """
        os.close(self.lifeline)
        for holder, name in (
            (forkserver._forkserver, "_forkserver_alive_fd"),  # no public names; the same in Python 3.10 to 3.13
            (resource_tracker._resource_tracker, "_fd"),
        ):
            os.close(getattr(holder, name))
            setattr(holder, name, None)


def serve(request: Mapping[str, Any]) -> ForkserverChild:
    """Make this process a fork-server that leaves nothing behind, import what is to be preloaded, report readiness."""
    os.setsid()  # Ctrl-C and a kill of the owner's group are the owner's: this process lives on to clean up after it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # blocked so far for the same reason
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # in its ranks, until they can answer: see rank.work
    kernel.adopt_orphans()
    lifeline = Path(request["lifeline"])
    try:
        # Not waiting for a reader: an owner that was killed before this line has none.
        serving = ForkserverChild(os.getpid(), os.open(lifeline, os.O_WRONLY | os.O_NONBLOCK), lifeline.parent)
    except OSError as orphaned:
        shutil.rmtree(lifeline.parent, ignore_errors=True)
        raise SystemExit(1) from orphaned
    atexit.register(_end_all, serving)
    # Orphans that it adopted end here too. multiprocessing, which knows its own children only, warns at each of them.
    warnings.filterwarnings("ignore", "forkserver: waitpid returned unexpected pid", UserWarning)
    if request["pythonpath"] is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = request["pythonpath"]
    # libgomp and OpenBLAS read it once, when torch and numpy are imported. A pool of threads would not survive a fork.
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.path[:] = request["path"]
    for name in request["modules"]:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as absent:
            if absent.name != name.partition(".")[0]:
                serving.broken[name] = repr(absent)
        except Exception as error:  # a rank that imports it meets the same error, and is blamed for it
            serving.broken[name] = repr(error)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()  # or every rank would print it again
    gc.collect()
    gc.freeze()  # a collection in a rank then leaves the pages of what is preloaded shared
    os.write(serving.lifeline, b"ready\n")
    return serving


def enter(task: str, log: Connection, result: Connection, stacks: Connection) -> None:
    """Become a rank: runs in a process just forked from the fork-server.

    `task` is what order.order made, as JSON. `log` takes what the process writes to stdout and stderr,
    `result` one line of JSON, `stacks` what faulthandler prints of all threads at SIGUSR1.
    """
    if serving is None:
        raise MatrixError("a rank starts from the fork-server only")
    os.setsid()
    kernel.die_with_parent(serving.pid)
    serving.let_go()
    order = json.loads(task)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    log.close()
    os.environ.update(order["env"])
    if order["fresh"]:
        _start_afresh(task, order["path"], result.fileno(), stacks.fileno())
    for name, why in serving.broken.items():
        sys.stderr.write(f"the fork-server could not import {name}: {why}\n")
    # A process made by the fork-server starts its own children through one, too; one started by hand would not.
    multiprocessing.set_start_method(None, force=True)
    sys.path[:] = order["path"]
    work(order, result.fileno(), stacks.fileno())


def launch(command: list[str], environment: Mapping[str, str], log: Connection) -> None:
    """Become `command`, a launcher of ranks: runs in a process just forked from the fork-server, in its own group.

    Its ranks are this machine's and as many as it is told, whatever a scheduler gave us.
    """
    if serving is None:
        raise MatrixError("a launcher starts from the fork-server only")
    os.setsid()
    kernel.die_with_parent(serving.pid)
    serving.let_go()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log.fileno(), 1), (log.fileno(), 2)):
        os.dup2(source, target)
    told = {name: value for name, value in {**os.environ, **environment}.items() if name != SCHEDULED}
    os.execve(command[0], command, told)  # noqa: S606  (no shell wanted)


def _start_afresh(task: str, path: list[str], result: int, stacks: int) -> None:
    """Replace this process by a new interpreter: same process, parent, session and pipes; nothing preloaded."""
    paper = os.memfd_create("task")  # not an argument: those are bounded, and show in every process list
    with os.fdopen(os.dup(paper), "w", encoding="utf-8") as file:
        file.write(task)
    os.lseek(paper, 0, os.SEEK_SET)
    fds = (paper, result, stacks)
    for fd in fds:
        os.set_inheritable(fd, True)
    os.execv(sys.executable, [sys.executable, "-c", FRESH.format(path=path, fds=fds)])  # noqa: S606  (no shell wanted)


def _end_all(serving: ForkserverChild) -> None:
    """Clear away what the owner can't any more: runs when it closed the "alive" pipe, by will or by dying."""
    if os.getpid() == serving.pid:
        end_below(serving.pid, leave_s=0, kill_s=OVERTIME_S)
        shutil.rmtree(serving.folder, ignore_errors=True)


_request: Final = os.environ.pop(REQUEST, None)
serving: Final = None if _request is None else serve(json.loads(_request))
