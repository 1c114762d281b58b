"""Asks this machine. The one module of the doctor that touches it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from matrix.check.facts import SHM, HostFacts, InterpreterFacts, Mpi
from matrix.execution import preflights
from matrix.execution.ranks.memory import allowed, available
from matrix.kit.launch import VARIABLES
from matrix.provision import host
from matrix.provision.nvidia import devices

INTERVIEW: Final = Path(__file__).with_name("interview.py")
# Seconds for an interpreter to import torch and Transformer Engine: 2 s and 5 s on 2 cores, a minute on a cold network
# file system. mpirun answers in 0.1 s.
PATIENCE_S: Final = 180.0


def look(python: str, environ: Mapping[str, str]) -> HostFacts:
    """Return the facts of this machine, with `python` as the interpreter that a job would have."""
    names = (*VARIABLES, *(name for one in preflights.installed() for name in one.variables))
    told = devices.ask(python=python)
    shm = shutil.disk_usage(SHM) if Path(SHM).is_dir() else None
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return HostFacts(
        interpreter=interview(python),
        driver=host.driver_of() or told.nvml.driver,
        nvml=told.nvml,
        cuda=told.cuda,
        mpi=mpi(),
        shm=shm and shm.total,
        shm_free=shm and shm.free,
        memory=memory,
        available=available(),
        limit=allowed(memory),
        environ={name: environ[name] for name in names if name in environ},
    )


def interview(python: str) -> InterpreterFacts:
    """Ask an interpreter for what decides. It may crash or hang while it imports; that is then the answer."""
    try:
        asked = subprocess.run(
            [python, "-c", INTERVIEW.read_text(encoding="utf-8")], capture_output=True, text=True, timeout=PATIENCE_S
        )  # fmt: skip
    except OSError as error:
        return InterpreterFacts(python, problems=(f"{python} can't be started: {error.strerror}",))
    except subprocess.TimeoutExpired:
        return InterpreterFacts(python, problems=(f"{python} did not answer in {PATIENCE_S:.0f} s",))
    try:
        told: dict[str, Any] = json.loads(asked.stdout.splitlines()[-1])
        return InterpreterFacts(python, **{**told, "problems": tuple(told["problems"])})
    except (IndexError, ValueError, KeyError, TypeError):
        said = asked.stderr.strip().splitlines()[-1:] or ["nothing"]
        return InterpreterFacts(python, problems=(f"{python} left with status {asked.returncode}: {said[0]}",))


def mpi() -> Mpi | None:
    """Return the mpirun on PATH; None without one."""
    path = shutil.which("mpirun")
    if path is None:
        return None
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=PATIENCE_S).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return Mpi(path, f"does not say its version: {error}")
    return Mpi(path, (said.strip().splitlines() or ["does not say its version"])[0])
