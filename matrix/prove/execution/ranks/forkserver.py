"""The forkserver, seen from its owner: multiprocessing's own, with the preload of this project."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from types import ModuleType
from typing import Final

from matrix import PACKAGE
from matrix.ground.errors import MatrixError
from matrix.prove.execution.ranks import forkserver_child, variables

PRELOAD_S: Final = 300.0  # s; torch and torch.distributed took 2.6 s, 10 s on a busy machine; a network disk is slower
ANSWER_S: Final = 60.0  # s for it to start all ranks of a job (8 took 20 ms), or to end: 5 s. A stopped one never does
ROOT: Final = str(PACKAGE.parent)  # holds this package


class Forkserver:
    """A forkserver with `modules` imported, found on `path` first. `ensure` starts it; one per process.

    `note` is empty, or describes which modules are not preloaded, and why.
    """

    def __init__(self, modules: Sequence[str], path: Sequence[str], *, preload_s: float = PRELOAD_S) -> None:
        self.modules, self.path, self.note, self.pid = tuple(modules), tuple(path), "", 0
        self._preload_s = preload_s
        self.lifeline = -1  # the read end of a FIFO, which reaches its end when the server dies
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def folder(self) -> Path:
        """Return the folder for files that jobs share. The server removes it too, in case its owner is killed."""
        assert self._folder, "ensure() makes it"
        return Path(self._folder.name)

    def ensure(self) -> int:
        """Return the file descriptor that becomes readable when the server dies; start the server if none runs.

        Raises MatrixError if it can't be started.
        """
        if self.lifeline != -1 and not readable((self.lifeline,), 0):
            self.folder.mkdir(mode=0o700, exist_ok=True)  # a body can remove it
            return self.lifeline
        self.stop()
        if not self._start(self.modules):
            # An import crashed the process (a segfault in a library), or started CUDA or a thread, which a fork lacks.
            # Ranks then import the modules themselves, and a crash is reported for the rank.
            self.stop()
            if not self._start(()):
                self.stop()
                raise MatrixError("the forkserver dies at its start", fix="see its output on stderr")
        return self.lifeline

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Kill the server if a block that waits for it takes more than ANSWER_S: its owner would wait for ever."""
        killer = threading.Timer(ANSWER_S, os.kill, (self.pid, signal.SIGKILL))
        killer.daemon = True
        if self.pid:
            killer.start()
        try:
            yield
        finally:
            killer.cancel()

    def stop(self) -> None:
        """End the server and every process it started. Does nothing if none runs."""
        if self.lifeline != -1:
            os.close(self.lifeline)
            self.lifeline = -1
            with self.answering():
                _stop()
            self.pid = 0
            if self._folder is not None:
                self._folder.cleanup()

    def _start(self, modules: Sequence[str]) -> bool:
        """Start a server and wait until it has imported `modules`; return False if it died meanwhile."""
        if _pid() is not None:
            raise MatrixError(
                "multiprocessing's forkserver already runs in this process",
                fix="start the supervisor first, or use another start method than forkserver in the other code",
            )
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-", ignore_cleanup_errors=True)
        lifeline = self.folder / "lifeline"
        os.mkfifo(lifeline)
        self.lifeline = os.open(lifeline, os.O_RDONLY | os.O_NONBLOCK)
        try:
            self.pid = self._launch(lifeline, modules)
            # A FIFO reports no end before its first writer, so a server that dies earlier is seen by its pidfd only.
            with os.fdopen(os.pidfd_open(self.pid)) as process:
                ready = readable((self.lifeline, process.fileno()), self._preload_s)
            if not ready:
                raise MatrixError(
                    "the forkserver is not ready",
                    got=f"no reply within {self._preload_s:g} s while it imports {', '.join(modules)}",
                    fix=f"find the import that hangs: {sys.executable} -v -c 'import {', '.join(modules)}'; "
                    "on a busy machine a longer MEGATRIX_DEADLINE counts for imports, too",
                )
        except BaseException:  # Ctrl-C too: the import may never end
            if self.pid:
                os.kill(self.pid, signal.SIGKILL)
            self.stop()
            raise
        status, _, threads = os.read(self.lifeline, forkserver_child.STATUS).decode(errors="replace").partition("\n")
        names = ", ".join(modules)
        self.note = self.note or {
            forkserver_child.READY: "",
            forkserver_child.STARTED_CUDA: f"an import of {names} started CUDA; the forkserver runs without them",
            forkserver_child.STARTED_THREADS: (
                f"an import of {names} left a thread ({threads}); the forkserver runs without them"
            ),
        }.get(status, f"the forkserver died while it imported {names}; it runs without them")
        return status == forkserver_child.READY

    def _launch(self, lifeline: Path, modules: Sequence[str]) -> int:
        request = {"lifeline": str(lifeline), "path": [*self.path, *import_path()], "modules": modules}
        # multiprocessing passes its owner's sys.path to the children of the server, not to the server (3.10 to 3.13).
        # PYTHONPATH therefore contains the folder of this package; the server removes it.
        forkserver.set_forkserver_preload([forkserver_child.__name__])
        environ = {**variables.of_cpu(), forkserver_child.REQUEST: json.dumps(request), "PYTHONPATH": ROOT}
        # multiprocessing starts both by `python -c`. Python 3.10 does not know the variable: there a run keeps its
        # current folder, which is the project's.
        environ["PYTHONSAFEPATH"] = "1"
        with environment(environ), empty_main(), no_warning_options():
            resource_tracker.ensure_running()  # the forkserver requires it, and starting it unblocks SIGINT
            with no_interrupt():
                forkserver.ensure_running()
        return _pid() or 0


def import_path() -> list[str]:
    """Return sys.path for other processes, with "" replaced by this process's current directory."""
    return [entry or str(Path.cwd()) for entry in sys.path]


def readable(fds: Sequence[int], limit_s: float) -> bool:
    """Return whether one of `fds` becomes readable or ends within the limit."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return bool(poll.poll(limit_s * 1000))


def _pid() -> int | None:
    pid: int | None = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]  # no public name
    return pid


def _stop() -> None:
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # no public name


@contextmanager
def empty_main() -> Iterator[None]:
    """Replace `__main__` by an empty module for the length of a block.

    multiprocessing imports its owner's main module in every child, under another name. Under pytest each rank would
    import pytest; a script without `if __name__ == "__main__"` would run again.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def no_interrupt() -> Iterator[None]:
    """Block SIGINT in this process and in processes that it starts during the block."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def no_warning_options() -> Iterator[None]:
    """Empty this process's warning options (-W, PYTHONWARNINGS), which multiprocessing passes to the server."""
    options = sys.warnoptions[:]
    sys.warnoptions.clear()
    try:
        yield
    finally:
        sys.warnoptions[:] = options


@contextmanager
def environment(environ: Mapping[str, str]) -> Iterator[None]:
    """Replace the environment variables for the length of a block."""
    previous = dict(os.environ)
    os.environ.clear()
    os.environ.update(environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(previous)
