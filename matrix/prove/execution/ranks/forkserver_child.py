"""The code that runs in the forkserver: its preparation, and turning a forked process into a rank.

multiprocessing's forkserver imports this module by name, which is its only hook. The import has an effect only if
REQUEST is in the environment, as in the forkserver. matrix.prove.execution.ranks.forkserver is the code of its owner.
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
import socket
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.machinery import ExtensionFileLoader, PathFinder, SourceFileLoader
from multiprocessing import forkserver, get_context, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn, cast

from matrix.prove.execution.ranks import mpirun
from matrix.prove.execution.ranks.descendants import end_below
from matrix.prove.execution.ranks.rank_main import open_streams, work
from matrix.prove.execution.ranks.rank_spec import OVERTIME_S
from matrix.read import kernel
from matrix.read.commands import python_code
from matrix.read.machine import cuda

# Written to the lifeline after the preload, the last two by an overlay server alone; which threads follows the second.
READY, STARTED_CUDA, STARTED_THREADS, FAILED, CHANGED = "ready", "cuda", "threads", "failed", "changed"
STATUS: Final = 4096  # bytes at most
# They are read once, at the import: libgomp, OpenBLAS (numpy) and MKL start their pools then; torch._inductor starts a
# process that compiles, and a thread that reads from it (2.11 and later only where triton is installed).
SINGLE: Final = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TORCH_WARM_POOL": "0",  # of torch 2.4 and later
}
OTHER: Final = "no import"  # of threads that a function starts
# Threads that a fork may lack, by name. jemalloc holds their locks over a fork, and the child begins without them.
FORKED_WITHOUT: Final = ("jemalloc_bg_thd",)
REQUEST: Final = "MATRIX_FORK_SERVER"  # JSON: {"lifeline": path, "path": [], "modules": []}
Broken = dict[str, str]  # the error of an import, by module
FRESH: Final = (
    "import sys; sys.path[:] = {path!r}; from matrix.prove.execution.ranks.rank_main import resume; resume({fds!r})"
)
PRINTED: Final = 2**16  # bytes of the output of imports: 0.4 kB for megatron-core, more for warnings
UNFLUSHED: Final = 120  # exit status of CPython when it can't write what a standard stream holds (sys.exit)
# If it is set, Open MPI (5.0.7) starts ranks by srun, and at most as many as the Slurm job has tasks.
SCHEDULED: Final = "SLURM_JOBID"


@dataclass
class ForkserverChild:
    """The state of the forkserver. `broken` maps a module to the error of its import; absent modules are left out.

    `printed` is the output of an overlay server's imports, which comes first in the log of each rank, and `path` is
    sys.path after them: setuptools, which megatron-core imports, adds a folder. `changes` are the variables that they
    set, None for one that they remove: torch.compile sets some.
    """

    pid: int
    lifeline: int
    folder: Path
    broken: Broken = field(default_factory=dict)
    printed: bytes = b""
    path: list[str] = field(default_factory=list)
    changes: dict[str, str | None] = field(default_factory=dict)

    def close_inherited(self) -> None:
        """Close the inherited descriptors in a rank just forked.

        The lifeline closes when the server dies, which its owner detects. The "alive" pipe closes when the owner dies,
        which the server detects. multiprocessing passes that pipe to every child, so that children can start children:
        a rank that kept it open would keep the server, and so itself, alive after a kill -9 of the owner. The owner's
        resource tracker would print warnings about the semaphores of a crashed rank; a rank that makes semaphores
        starts a tracker of its own instead, which ends with it.
        """
        os.close(self.lifeline)
        for holder, name in (
            (forkserver._forkserver, "_forkserver_alive_fd"),  # no public names; the same in Python 3.10 to 3.13
            (resource_tracker._resource_tracker, "_fd"),
        ):
            os.close(getattr(holder, name))
            setattr(holder, name, None)


def serve(request: Mapping[str, Any]) -> ForkserverChild:
    """Set up this process as the forkserver, import the modules to preload, report readiness on the lifeline."""
    os.setsid()  # Ctrl-C and a kill of the owner's group must not end this process: it cleans up after its owner
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # its owner blocked it for the same reason
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # inherited by the ranks until rank.work installs a handler
    kernel.adopt_orphans()
    lifeline = Path(request["lifeline"])
    try:
        # Does not wait for a reader: an owner that was killed before this line has none.
        serving = ForkserverChild(os.getpid(), os.open(lifeline, os.O_WRONLY | os.O_NONBLOCK), lifeline.parent)
    except OSError as orphaned:
        shutil.rmtree(lifeline.parent, ignore_errors=True)
        raise SystemExit(1) from orphaned
    atexit.register(_end_all, serving)
    # Adopted orphans end in this process too. multiprocessing warns about each child that it did not start.
    warnings.filterwarnings("ignore", "forkserver: waitpid returned unexpected pid", UserWarning)
    os.environ.pop("PYTHONPATH", None)
    os.environ.update(SINGLE)
    sys.path[:] = request["path"]
    of_overlay, environ = "hidden" in request, dict(os.environ)
    watch = ThreadWatch()
    serving.broken = watch.during(partial(import_all, request["modules"], required=of_overlay))
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()  # otherwise every rank prints the buffer again
    gc.collect()
    gc.freeze()  # so that a collection in a rank does not unshare the pages of the preloaded modules
    # A rank would inherit the locks that a thread holds at the fork, and not the thread that releases them.
    threads = watch.left
    status = STARTED_CUDA if cuda.initialised() else STARTED_THREADS if threads else READY
    if of_overlay and status == READY:
        names = {name for name, _ in os.environ.items() ^ environ.items()}
        serving.changes = {name: os.environ.get(name) for name in names}
        own = any(str(serving.folder) in (value or "") for value in serving.changes.values())  # not a rank's folder
        status = FAILED if serving.broken else CHANGED if own else READY
    os.write(serving.lifeline, f"{status}\n{threads}".encode()[:STATUS])
    return serving


class ThreadWatch:
    """A finder of modules that notes by the import of which, the innermost, each thread of this process started."""

    def __init__(self) -> None:
        self._started, self._importing = dict[int, str](), [OTHER]

    def during(self, imports: Callable[[], Broken]) -> Broken:
        """Return the result of `imports`, which may also call functions."""
        sys.meta_path.insert(sys.meta_path.index(PathFinder), self)
        try:
            return imports()
        finally:
            sys.meta_path.remove(self)
            self._note()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """Return what Python's own finder returns, with a look at the threads before and after each of its steps."""
        self._note()
        spec = PathFinder.find_spec(name, path, target)
        if spec and isinstance(loader := spec.loader, (SourceFileLoader, ExtensionFileLoader)):
            loader.create_module = partial(self._step, name, loader.create_module)  # type: ignore[method-assign]
            loader.exec_module = partial(self._step, name, loader.exec_module)  # type: ignore[method-assign]
        return spec

    @property
    def left(self) -> str:
        """Return the modules and their threads that run, "" if a fork lacks none: "numpy: python3 x 15"."""
        of_python = {thread.native_id: thread.name for thread in threading.enumerate()}
        counts: Counter[str] = Counter()
        for thread, name in self._threads().items():
            if thread != os.getpid() and name not in FORKED_WITHOUT:
                counts[f"{self._started.get(thread, OTHER)}: {of_python.get(thread, name)}"] += 1
        return ", ".join(f"{text} x {count}" if count > 1 else text for text, count in counts.items())

    def _step(self, name: str, step: Callable[[Any], Any], argument: object) -> Any:
        self._importing.append(name)
        try:
            return step(argument)
        finally:
            self._note()
            self._importing.pop()

    def _note(self) -> None:
        for thread in self._threads():
            self._started.setdefault(thread, self._importing[-1])

    @staticmethod
    def _threads() -> dict[int, str]:
        """Return the threads of this process, with their names."""
        names = dict[int, str]()
        for path in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # it ends
                names[int(path.name)] = (path / "comm").read_text(encoding="utf-8", errors="replace").strip()
        return names


def import_all(names: Sequence[str], *, required: bool) -> Broken:
    """Import modules, and call functions (MODULE:FUNCTION); return the error of each. `required`: absence is one."""
    broken = {}
    for name in names:
        module, _, function = name.partition(":")
        try:
            imported = importlib.import_module(module)
            if function:
                getattr(imported, function)()
        except ModuleNotFoundError as absent:
            if required or absent.name != name.partition(".")[0]:
                broken[name] = repr(absent)
        except Exception as error:  # a rank that imports it raises the same error, which is reported for the rank
            broken[name] = repr(error)
    return broken


def hold(task: str, listener: socket.socket, alive: Connection) -> None:
    """Turn a process just forked from the forkserver into an overlay server, until the other end of `alive` is closed.

    `task` is the request as JSON. `listener` receives what multiprocessing's forkserver receives.
    """
    global serving  # the ranks that it forks read it
    base = serving
    assert base, "an overlay server starts only from the forkserver"
    kernel.die_with_parent(base.pid)
    base.close_inherited()
    request = json.loads(task)
    os.environ.clear()
    os.environ.update(request["environ"])
    sys.modules.update(dict.fromkeys(request["hidden"], cast(ModuleType, None)))
    printed, streams = os.memfd_create("printed"), (os.dup(1), os.dup(2))
    for number in (1, 2):
        os.dup2(printed, number)
    open_streams()
    serving = serve(request)
    for number, stream in enumerate(streams, 1):
        os.dup2(stream, number)
        os.close(stream)
    serving.broken, serving.printed, serving.path = base.broken, os.pread(printed, PRINTED, 0), sys.path[:]
    os.close(printed)
    ends = os.dup(alive.fileno())  # the server closes it in its children, where `alive` would close it again
    alive.close()
    forkserver.main(listener.detach(), ends, [])


class ForkedProcess(get_context("forkserver").Process):  # type: ignore[misc]  # made at run time
    """A process forked from the forkserver. It ends as an interpreter that torchrun starts does.

    multiprocessing ends its children by os._exit: a handler that hangs or changes the exit status would have no effect.
    Exit handlers of C libraries and the teardown of modules do not run here; they do with fresh=True.
    """

    def run(self) -> NoReturn:
        """Call the target, then do what CPython does after a script (Py_RunMain), with its output and exit status."""
        status, interrupted = 0, False
        try:
            super().run()
        except BaseException as error:
            status, interrupted = exit_status(error), isinstance(error, KeyboardInterrupt)
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads; as CPython calls it
        atexit._run_exitfuncs()
        if not all([flushed("stdout"), flushed("stderr")]):
            status = UNFLUSHED
        if interrupted:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
        os._exit(status)


def exit_status(error: BaseException) -> int:
    """Print an exception that nothing caught, as CPython does; return the exit status of the process."""
    if not isinstance(error, SystemExit):
        try:
            sys.excepthook(type(error), error, error.__traceback__)
        except BaseException as error_of_hook:
            sys.excepthook = sys.__excepthook__
            return exit_status(error_of_hook)
        return 1
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF if -(2**63) <= error.code < 2**63 else 0xFF  # CPython reads a C long, or -1
    try:
        sys.stderr.write(f"{error.code}\n")
    except Exception as unwritable:
        missing = isinstance(unwritable, AttributeError)  # stderr is None or deleted, not closed
        os.write(2, f"{error.code if missing else ''}\n".encode(errors="backslashreplace"))
    return 1


def flushed(name: str) -> bool:
    """Flush a standard stream; return whether that succeeds: one that is closed or missing has nothing to flush."""
    stream = getattr(sys, name, None)
    try:
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()
    except Exception as error:
        if name == "stdout":  # CPython reports an error of stdout only
            where = f"on flushing sys.{name}:" if sys.version_info >= (3, 13) else f"in: {stream!r}"
            sys.stderr.write(f"Exception ignored {where}\n{type(error).__name__}: {error}\n")
        return False
    return True


def enter(task: str, log: Connection, result: Connection, stacks: Connection) -> None:
    """Turn a process just forked from the forkserver into a rank.

    `task` is a rank spec as JSON. `log` receives stdout and stderr, `result` one line of JSON, `stacks` the stacks of
    all threads, which faulthandler prints at SIGUSR1.
    """
    assert serving, "a rank starts only from the forkserver"
    os.setsid()
    kernel.die_with_parent(serving.pid)
    serving.close_inherited()
    spec = json.loads(task)
    mpirun.redirect(log.fileno())
    log.close()
    os.environ.clear()
    os.environ.update(spec["env"])
    if spec["fresh"]:
        _start_afresh(task, spec["path"], result.fileno(), stacks.fileno())
    for name, why in serving.broken.items():
        sys.stderr.write(f"the forkserver could not import {name}: {why}\n")
    if serving.printed:
        os.write(2, serving.printed)
    # A process of the forkserver would start its children by forkserver too; other processes use the default.
    multiprocessing.set_start_method(None, force=True)
    sys.path[:] = serving.path or spec["path"]
    for name, value in serving.changes.items():
        os.environ.pop(name, None)
        os.environ.update({} if value is None else {name: value})
    work(spec, result.fileno(), stacks.fileno())


def launch(command: list[str], environment: Mapping[str, str], log: Connection) -> None:
    """Turn a process just forked from the forkserver into `command`, a launcher of ranks, in its own process group.

    The launcher starts its ranks on this machine, in the number of its option -np, also inside a scheduler's job.
    """
    assert serving, "a launcher starts only from the forkserver"
    os.setsid()
    kernel.die_with_parent(serving.pid)
    serving.close_inherited()
    mpirun.redirect(log.fileno())
    variables = {name: value for name, value in environment.items() if name != SCHEDULED}
    os.execve(command[0], command, variables)  # noqa: S606  (no shell)


def _start_afresh(task: str, path: list[str], result: int, stacks: int) -> None:
    """Replace this process by a new interpreter with the same pid, parent, session and pipes, and nothing preloaded."""
    spec = os.memfd_create("task")  # not an argument: arguments are limited in size and visible in process lists
    with os.fdopen(os.dup(spec), "w", encoding="utf-8") as file:
        file.write(task)
    os.lseek(spec, 0, os.SEEK_SET)
    fds = (spec, result, stacks)
    for fd in fds:
        os.set_inheritable(fd, True)
    os.execv(sys.executable, python_code(sys.executable, FRESH.format(path=path, fds=fds)))  # noqa: S606  (no shell)


def _end_all(serving: ForkserverChild) -> None:
    """End all processes and remove the folder. Runs when the owner has closed the "alive" pipe or has died."""
    if os.getpid() == serving.pid:
        end_below(serving.pid, leave_s=0, kill_s=OVERTIME_S)
        shutil.rmtree(serving.folder, ignore_errors=True)


_request: Final = os.environ.pop(REQUEST, None)
serving: ForkserverChild | None = None if _request is None else serve(json.loads(_request))
