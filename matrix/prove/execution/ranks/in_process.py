"""One rank of a job in this process, where a debugger reaches the frames of upstream; the others are new processes.

Nothing bounds it: no deadline, no memory limit, no forkserver. What it returns or raises is no result of a case.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

from matrix.ground.catalog.codec import decode
from matrix.ground.errors import MatrixError
from matrix.kit.rank import Rank
from matrix.prove.execution.ranks import mpirun
from matrix.prove.execution.ranks.forkserver import import_path
from matrix.prove.execution.ranks.forkserver_child import FRESH
from matrix.prove.execution.ranks.rank_main import imported
from matrix.prove.execution.ranks.rank_spec import GroupRequest, RankJob
from matrix.read import kernel
from matrix.read.commands import python_code

# Variables of the person's terminal and debugger, which a rank does not have otherwise.
TERMINAL: Final = ("TERM", "COLUMNS", "LINES", "PYTHONBREAKPOINT", "NO_COLOR", "FORCE_COLOR")


def run(job: RankJob, number: int = 0) -> Any:
    """Run one rank of a job in this process and return its value; raise what it raises.

    The process keeps the modules that the rank imported or hid. The other ranks end with this one. Raises MatrixError
    for a rank that the job does not have, and for a job that mpirun starts.
    """
    if job.launcher == mpirun.NAME:
        raise MatrixError("mpirun starts the ranks of this case", expected="a case whose launcher is torchrun")
    if not 0 <= number < job.world_size:
        raise MatrixError("no such rank", got=number, expected=f"0 - {job.world_size - 1}")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        (Path(folder) / "work").mkdir()
        job.log_dir.mkdir(parents=True, exist_ok=True)
        specs = [json.loads(spec) for spec in GroupRequest(job, Path(folder), import_path()).specs()]
        for rank, spec in enumerate(specs):
            if rank != number:
                stack.enter_context(_other(spec, job.log_dir / f"rank-{rank}.log"))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("default")  # pytest's settings may make errors of upstream's warnings
        spec = stack.enter_context(_as_rank(specs[number], job.target))
        sys.modules.update(dict.fromkeys(job.hidden, cast(ModuleType, None)))
        return imported(job.target)(decode(Rank, spec["rank"]), **job.kwargs)


@contextmanager
def _as_rank(spec: dict[str, Any], target: str) -> Iterator[dict[str, Any]]:
    """Set the variables, the arguments and sys.path of a rank for the length of a block."""
    environ, arguments, path = dict(os.environ), sys.argv[:], sys.path[:]
    terminal = {name: environ[name] for name in TERMINAL if name in environ}

    def become(variables: dict[str, str], words: list[str], folders: list[str]) -> None:
        os.environ.clear()
        os.environ.update(variables)
        sys.argv[:], sys.path[:] = words, folders

    become(spec["env"] | terminal, [target], spec["path"])
    try:
        yield spec
    finally:
        become(environ, arguments, path)


@contextmanager
def _other(spec: dict[str, Any], log: Path) -> Iterator[None]:
    """Run another rank in a new interpreter until the block ends."""
    task, nothing = os.memfd_create("task"), os.open(os.devnull, os.O_WRONLY)
    with os.fdopen(os.dup(task), "w", encoding="utf-8") as file:
        json.dump(spec | {"fresh": True, "preloaded": []}, file)
    os.lseek(task, 0, os.SEEK_SET)
    fds, parent = (task, nothing, nothing), os.getpid()
    code = FRESH.format(path=spec["path"], fds=fds)
    with log.open("wb") as output:
        process = subprocess.Popen(
            python_code(sys.executable, code),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=spec["env"],
            pass_fds=(task, nothing),
            start_new_session=True,
            preexec_fn=lambda: kernel.die_with_parent(parent),
        )
    os.close(task)
    os.close(nothing)
    try:
        yield
    finally:
        process.kill()
        process.wait()
