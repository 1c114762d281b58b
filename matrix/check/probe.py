"""Collect the facts of this machine: drivers, GPUs, MPI, memory, the interpreter of a job."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from matrix.check.facts import SHM, HostFacts, InterpreterFacts, Mpi
from matrix.errors import MatrixError
from matrix.execution.ranks.memory import allowed, available
from matrix.kit.launch import VARIABLES
from matrix.provision import host
from matrix.provision.nvidia import devices

SCRIPT: Final = Path(__file__).with_name("interview.py")
# Seconds for an interpreter to import torch and Transformer Engine: 2 s and 5 s on 2 cores, a minute on a cold network
# file system. mpirun --version takes 0.1 s.
TIMEOUT_S: Final = 180.0


def look(environ: Mapping[str, str], variables: Iterable[str], interpreter: InterpreterFacts) -> HostFacts:
    """Return the facts of this machine for a job of `interpreter`; of `environ` launchers' and `variables` alone."""
    names = (*VARIABLES, *variables)
    found = devices.query(python=interpreter.path)
    shm = shutil.disk_usage(SHM) if Path(SHM).is_dir() else None
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return HostFacts(
        interpreter=interpreter,
        driver=host.driver_of() or found.nvml.driver,
        nvml=found.nvml,
        cuda=found.cuda,
        mpi=mpi(),
        shm=shm and shm.total,
        shm_free=shm and shm.free,
        memory=memory,
        available=available(),
        limit=allowed(memory),
        environ={name: environ[name] for name in names if name in environ},
    )


def interpreter_facts(python: str) -> InterpreterFacts:
    """Return the facts of another interpreter, which imports torch.

    One that crashes or hangs while it imports is reported in `problems`.
    Raises MatrixError if it can't be started.
    """
    try:
        process = subprocess.run(
            [python, "-c", SCRIPT.read_text(encoding="utf-8")], capture_output=True, text=True, timeout=TIMEOUT_S
        )  # fmt: skip
    except OSError as error:
        what, fix = "the interpreter can't be started", "--python PATH names another one"
        raise MatrixError(what, where=python, got=error.strerror, fix=fix) from None
    except subprocess.TimeoutExpired:
        return InterpreterFacts(python, problems=(f"{python} did not finish in {TIMEOUT_S:.0f} s",))
    try:
        facts: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
        return InterpreterFacts(python, **{**facts, "problems": tuple(facts["problems"])})
    except (IndexError, ValueError, KeyError, TypeError):
        last = process.stderr.strip().splitlines()[-1:] or ["nothing"]
        return InterpreterFacts(python, problems=(f"{python} exited with status {process.returncode}: {last[0]}",))


def mpi() -> Mpi | None:
    """Return the mpirun on PATH; None without one."""
    path = shutil.which("mpirun")
    if path is None:
        return None
    try:
        output = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=TIMEOUT_S).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return Mpi(path, f"reports no version: {error}")
    return Mpi(path, (output.strip().splitlines() or ["reports no version"])[0])
