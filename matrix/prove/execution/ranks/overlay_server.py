"""Processes forked from the forkserver that hold what the bodies of an overlay's jobs import first, and fork ranks.

The ranks of such a job share these imports, and so do those of the next job with the same overlays. A process that
can't import what a rank would is not used: each rank then imports by itself, and a failure is reported for the rank.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing import forkserver, get_context
from pathlib import Path
from typing import Any, Final

from matrix.ground.catalog.failure import NO_LIMITS
from matrix.prove.execution.ranks import forkserver_child
from matrix.prove.execution.ranks.forkserver import Forkserver, empty_main, import_path, readable
from matrix.prove.execution.ranks.rank_group import started
from matrix.prove.execution.ranks.rank_spec import RankJob, environment_of_device
from matrix.prove.provision.project import ROOT

START: Final = "megatron.start"  # a call of matrix.kit.megatron.start
CPU_DEVICE: Final = "matrix.kit.cpu_device:install"  # what it calls first at level cpu
CORE: Final = "megatron.core"
HELD: Final = ("megatron", "transformer_engine")  # what costs seconds
PRELOADED: Final = ("numpy", "torch")  # whose import changes nothing in a rank
KEPT: Final = 2  # overlays whose imports are held at a time: cases of one overlay follow each other
END_S: Final = 5.0  # s for a server without ranks to end: 10 ms on an idle core
# Why a server is not used, by what it wrote; the record of the case has it as a note.
REASONS: Final = {
    forkserver_child.READY: "",
    forkserver_child.STARTED_CUDA: "they start CUDA",
    forkserver_child.STARTED_THREADS: "they leave a thread ({})",
    forkserver_child.FAILED: "they fail",
    forkserver_child.CHANGED: "they set a variable to a folder of the process",
}


class OverlayServer:
    """One such process, for the jobs that `imports`, `job` is the first of which. Its `pid` is 0 if it is not used.

    `lifeline` becomes readable when it dies.
    """

    def __init__(self, base: Forkserver, job: RankJob, imports: tuple[str, ...]) -> None:
        self._base, self._folder = base, Path(tempfile.mkdtemp(prefix="overlay-", dir=base.folder))
        self._address = str(self._folder / "socket")
        os.mkfifo(self._folder / "lifeline")
        self.lifeline = os.open(self._folder / "lifeline", os.O_RDONLY | os.O_NONBLOCK)
        reader, self._alive = get_context("forkserver").Pipe(duplex=False)
        with socket.socket(socket.AF_UNIX) as listener, reader, base.answering(), empty_main():
            listener.bind(self._address)
            listener.listen()
            task = json.dumps(self._task(job, imports))
            self._process = started(forkserver_child.hold, "overlay server", task, [listener, reader])
        self.pid, status = self._process.pid or 0, ""
        if readable((self.lifeline, self._process.sentinel), job.deadline_s):
            with suppress(BlockingIOError):  # it died with nothing written, and a process that it started lives
                status = os.read(self.lifeline, forkserver_child.STATUS).decode(errors="replace")
        status, _, threads = status.partition("\n")
        reason = REASONS.get(status, "they end the process, or take as long as the case may").format(threads)
        self.note = reason and f"each rank imports {imports[-1]} and what precedes it by itself: {reason} beforehand"
        if reason:
            self.stop()

    def _task(self, job: RankJob, imports: tuple[str, ...]) -> dict[str, Any]:
        return {
            "lifeline": str(self._folder / "lifeline"),
            "path": [*job.path, *self._base.path, *import_path()],
            "modules": imports,
            "hidden": job.hidden,
            "environ": {"TORCH_EXTENSIONS_DIR": f"{self._folder}/extensions", **environment_of_device(job.device)},
        }

    @property
    def is_lost(self) -> bool:
        """Return whether a server that was used has died."""
        return bool(self.pid) and readable((self.lifeline,), 0)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Fork the processes that a block starts from this server."""
        server: Any = forkserver._forkserver  # no public name
        address, server._forkserver_address = server._forkserver_address, self._address
        try:
            with self._base.answering():
                yield
        finally:
            server._forkserver_address = address

    def stop(self) -> None:
        """End it and every process below it; a second call does nothing."""
        if self.lifeline == -1:
            return
        self._alive.close()
        if not self.note:
            self._process.join(END_S)
        if self._process.exitcode is None and self._process.pid:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)  # the forkserver adopts, and ends, what it leaves
        self._process.join()
        self._process.close()
        os.close(self.lifeline)
        self.lifeline, self.pid = -1, 0
        shutil.rmtree(self._folder, ignore_errors=True)


class OverlayServers:
    """The overlay servers of a forkserver: at most KEPT, of which the least recently used ends first."""

    def __init__(self, base: Forkserver) -> None:
        self._base, self._servers = base, dict[object, OverlayServer]()

    @property
    def pids(self) -> set[int]:
        """Return the processes that remain when a job has ended."""
        return {server.pid for server in self._servers.values() if server.pid}

    def of(self, job: RankJob) -> OverlayServer | None:
        """Return the server for a job, None if its ranks import by themselves. The forkserver must run."""
        imports = first_imports(job)
        if not imports or not self._base.modules or self._base.note:
            return None
        key = imports, job.path, job.hidden, job.device
        server = self._servers.pop(key, None)
        if server is None or server.is_lost:
            if server:
                server.stop()
            while len(self._servers) >= KEPT:
                self._servers.pop(next(iter(self._servers))).stop()
            server = OverlayServer(self._base, job, imports)
        self._servers[key] = server
        return server

    def stop(self) -> None:
        """End all of them."""
        while self._servers:
            self._servers.popitem()[1].stop()


def first_imports(job: RankJob) -> tuple[str, ...]:
    """Return the modules, and functions ("MODULE:FUNCTION"), that each rank imports or calls first; () if unknown.

    They are read from the source. The body of `def body(rank): torch = megatron.start(rank); from megatron.core import
    ...` first does what matrix.kit.megatron.start does, then imports a module. Whatever else a statement does ends the
    list, so they are imported in the order and the state in which the rank itself would import them.

    A rank imports them itself if it is fresh, started by mpirun, or limited in memory, or has variables of its own.
    """
    path, _, function = job.target.rpartition(":")
    if job.fresh or job.env or job.launcher != "torchrun" or job.limits != NO_LIMITS or not path.endswith(".py"):
        return ()
    return held(first_steps(Path(path), function), job)


def held(steps: Sequence[str], job: RankJob) -> tuple[str, ...]:
    """Return the steps up to the first that costs seconds; () if there is none, or a stand-in comes before it.

    Of megatron-core it is the package, which imports most of the rest: so most jobs of an overlay hold the same.
    """
    before: list[str] = []
    for step in steps:
        if step == START:
            if job.stand_ins or (job.device == "cpu" and "transformer_engine" not in job.hidden):
                return ()
            return (*before, *([CPU_DEVICE] if job.device == "cpu" else []), CORE)
        if step.partition(".")[0] in HELD:
            return (*before, CORE if f"{step}.".startswith(f"{CORE}.") else step)
        if step not in PRELOADED:
            before.append(step)
    return ()


@cache
def first_steps(path: Path, function: str) -> tuple[str, ...]:
    """Return the modules that a function in a file imports first, START among them; () if more happens at its import.

    A function that the file imports from the kit is read there.
    """
    body = ast.parse(path.read_text(encoding="utf-8")).body
    if not all(map(_defines, body)):
        return ()
    for statement in body:
        if isinstance(statement, ast.FunctionDef) and statement.name == function:
            return tuple(steps_of(statement.body))
        if isinstance(statement, ast.ImportFrom) and any(name.name == function for name in statement.names):
            file = ROOT.joinpath(*str(statement.module).split(".")).with_suffix(".py")
            return first_steps(file, function) if file.is_file() else ()
    return ()


def steps_of(body: Sequence[ast.stmt]) -> list[str]:
    """Return the steps of the first statements of a function, up to one that does something else."""
    steps: list[str] = []
    for statement in body:
        if isinstance(statement, ast.Import):
            steps += [name.name for name in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            steps.append(statement.module)
        elif ast.unparse(getattr(statement, "value", None) or statement).startswith(f"{START}("):
            steps.append(START)
        elif not _is_plain(statement):
            break
    return steps


def _defines(statement: ast.stmt) -> bool:
    """Return whether a statement of a module only imports, defines or assigns names."""
    guarded = isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"
    imports = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    return guarded or isinstance(statement, imports) or _assigns(statement)


def _is_plain(statement: ast.stmt) -> bool:
    """Return whether a statement assigns values that call nothing."""
    return _assigns(statement) and not any(isinstance(node, ast.Call) for node in ast.walk(statement))


def _assigns(statement: ast.stmt) -> bool:
    """Return whether a statement is a docstring, or assigns to names only."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    names = [node for target in targets for node in getattr(target, "elts", [target])]
    return isinstance(statement, (ast.Assign, ast.AnnAssign)) and all(isinstance(node, ast.Name) for node in names)
