"""`megatrix bundle`."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from functools import partial
from pathlib import Path

from matrix.ground.catalog import distributions, loading
from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.machine import PythonEnvironment
from matrix.ground.catalog.schema import Size
from matrix.ground.errors import ExitStatus, counted
from matrix.prove.execution import interrupt
from matrix.prove.planning.case_request import Supplies, bundled_cases, checked_base, supplies
from matrix.prove.provision.bundle_folder import Bundle
from matrix.prove.provision.bundle_making import GB, Maker, described, requested, room
from matrix.prove.provision.overlays import install_for
from matrix.prove.provision.te_wheels import Compilation, compilation, machine_memory
from matrix.read import scratch
from matrix.read.commands import run
from matrix.read.machine import installed
from matrix.show.terminal import plain, warn


def bundle_command(parsed: argparse.Namespace) -> int:
    """State the size of the bundle, make it, and state the size that it has."""
    interrupt.once()
    began, catalog = time.monotonic(), loading.load()
    split = int(Size.from_plain(parsed.split)) if parsed.split else 0
    base = checked_base(catalog, parsed.base, parsed.python)
    cases = bundled_cases(catalog, parsed.base, parsed.python, Level(parsed.level), parsed.select)
    unseen = parsed.dry_run and Path(tempfile.mkdtemp(dir=scratch.folder()))  # deleted at exit
    maker = Maker(unseen or parsed.out.absolute(), warn)
    request = requested(parsed.level, parsed.python, parsed.base, parsed.select, parsed.sm)
    needed = supplies(catalog, cases, compiled=bool(parsed.compile))
    extensions = compiled(parsed, needed, request, str(base.torch) if base else "") if parsed.compile else None
    if parsed.add:
        maker.add(request, parsed.out.absolute())
    else:
        maker.begin(request)
    warn(
        f"{counted(len(cases), 'case')} of level {parsed.level} on {parsed.base}; reading their packages from the index"
    )
    contents = maker.contents(request, base, needed, *((extensions.size, extensions.toolkit) if extensions else ()))
    kept = maker.kept(contents)
    if parsed.add:
        warn(f"added to the {kept / GB:.2f} GB that are there")
    for line in (*described(contents), *(extensions.lines if extensions else ())):
        warn(line)
    if parsed.dry_run:
        return ExitStatus.GOOD
    maker.check_space(contents, split)
    if extensions:
        with room(parsed.out):
            extensions.into(parsed.out.absolute() / "compiled", run, partial(install_for, parsed.python, run), warn)
    bundle = maker.make(request, contents, split)
    deviation = 100 * (contents.size + kept - bundle.size) / bundle.size
    size, seconds = f"{bundle.size / GB:.2f} GB in {len(bundle.files)} files", time.monotonic() - began
    print(plain(f"{parsed.out}: {size}, {seconds:.0f} s; stated: {deviation:+.1f} %"))
    print(plain(f"on the other machine: python{parsed.python} {parsed.out.name}/start.py"))
    return ExitStatus.GOOD


def compiled(parsed: argparse.Namespace, needed: Supplies, request: Bundle, torch: str) -> Compilation:
    """Return what --compile compiles on this machine; `torch` is that of the bundle's base. Raises MatrixError."""
    jobs = distributions.jobs(len(os.sched_getaffinity(0)), machine_memory())
    environment, machine = installed.at(parsed.compile) or PythonEnvironment(), (parsed.python, torch, request.sm)
    return compilation(needed.builds, environment, machine, jobs)
