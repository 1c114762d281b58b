"""Collect the facts of this machine: drivers, GPUs, MPI, memory, the interpreter of a job."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from matrix.ask.check.job_site import SHM, JobSite
from matrix.ground.catalog.codec import MalformedError, decode_json
from matrix.ground.catalog.machine import Machine, PythonEnvironment
from matrix.ground.catalog.versions import is_version
from matrix.ground.errors import MatrixError
from matrix.kit.launch import VARIABLES
from matrix.read.commands import NOT_STARTED, TIMED_OUT, python_code, run
from matrix.read.machine import hardware
from matrix.read.machine.memory import allowed, available
from matrix.read.machine.nvidia import devices

SCRIPT: Final = Path(__file__).with_name("python_script.py")
# Seconds for an interpreter to import torch and Transformer Engine: 2 s and 5 s on 2 cores, a minute on a cold network
# file system. mpirun --version takes 0.1 s.
TIMEOUT_S: Final = 180.0


def job_site(environ: Mapping[str, str], variables: Iterable[str], python: PythonEnvironment) -> JobSite:
    """Return this machine for a job of `python`; of `environ`, the variables of launchers and `variables` alone."""
    libraries = devices.query(python=str(python.path or sys.executable))
    shm = shutil.disk_usage(SHM) if Path(SHM).is_dir() else None
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    machine = Machine(
        driver=hardware.driver_of() or libraries.nvml.driver,
        cuda=libraries.cuda,
        nvml=libraries.nvml,
        memory=memory,
        available=available(),
        limit=allowed(memory),
        shm=shm and shm.total,
        shm_free=shm and shm.free,
        mpirun=mpirun(),
    )
    return JobSite(python, machine, {name: environ[name] for name in (*VARIABLES, *variables) if name in environ})


def python_of(path: str) -> PythonEnvironment:
    """Return the packages of another interpreter, which imports torch.

    One that crashes or hangs while it imports is reported in `problems`. Raises MatrixError if it can't be started.
    """
    result = run(python_code(path, SCRIPT.read_text(encoding="utf-8")), seconds=TIMEOUT_S)
    if result.code == NOT_STARTED:
        raise MatrixError(
            "the interpreter can't be started", where=path, got=result.err, fix="--python PATH names another one"
        )
    if result.code == TIMED_OUT:
        return PythonEnvironment(path=Path(path), problems=(f"{path} did not finish in {TIMEOUT_S:.0f} s",))
    last_line = (result.err.strip().splitlines() or ["nothing"])[-1]
    with suppress(MalformedError):
        environment = decode_json(PythonEnvironment, (result.out.splitlines() or [""])[-1])
        strange = [f"{name} {text!r}" for name, text in environment.packages.items() if not is_version(text)]
        if environment.python and not strange:
            return replace(environment, path=Path(path))
        last_line = ", ".join(strange) or last_line
    return PythonEnvironment(path=Path(path), problems=(f"{path} exited with status {result.code}: {last_line}",))


def mpirun() -> tuple[str, str] | None:
    """Return the path of the mpirun on PATH and the first line of its --version; None without one."""
    path = shutil.which("mpirun")
    if path is None:
        return None
    result = run([path, "--version"], seconds=TIMEOUT_S)
    problem = result.complaint if result.code in (NOT_STARTED, TIMED_OUT) else ""
    lines = [f"reports no version: {problem}"] if problem else result.out.strip().splitlines()
    return path, (lines or ["reports no version"])[0]
