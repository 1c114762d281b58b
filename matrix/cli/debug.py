"""`megatrix debug`."""

from __future__ import annotations

import argparse
import os
import subprocess
from pathlib import Path
from typing import Any

from matrix.cli import case_options
from matrix.cli.usage import add_command, add_out
from matrix.ground.catalog import loading
from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.model import HOST, Catalog
from matrix.ground.errors import ExitStatus
from matrix.prove.execution.engine import neutral
from matrix.prove.planning.case_request import CaseRequest
from matrix.prove.provision import project
from matrix.prove.provision.bases import PYTEST_SETTINGS, Bases
from matrix.prove.store.paths import Paths
from matrix.prove.store.stored_run import StoredRun
from matrix.read.commands import python_module
from matrix.read.machine import installed
from matrix.show.terminal import warn


def add_parser(commands: Any) -> None:
    """Add the command to the object that argparse's add_subparsers returned."""
    parser = add_command(commands, "debug")
    add_out(parser)
    parser.set_defaults(command=debug_command)


def debug_command(parsed: argparse.Namespace) -> int:
    """Run one rank of a case under pytest's pdb in the interpreter of its cell; return 1 where it raises."""
    levels = (Level.CPU, Level.GPU)
    catalog = loading.load()
    planned, _ = case_options.selected(catalog, CaseRequest(levels, keys=(parsed.case,), here=parsed.here))
    run = StoredRun.create(Paths(parsed.out).new_run("debug"), planned)
    base = planned[0].cell.base
    settings = {"MEGATRIX_RUN": str(run.folder.resolve()), "MEGATRIX_BASE": "" if base == HOST else base}
    failure = f"tests/failures/{planned[0].failure.replace('-', '_')}"
    words = ["-q", "-s", "--pdb", "-p", "no:cacheprovider", "--megatrix-debug", str(parsed.rank), failure]
    command = python_module(interpreter(catalog, base), "pytest", *words, folder=project.folder())
    environment = {**neutral(os.environ), **PYTEST_SETTINGS, **settings}
    status = subprocess.run(command, cwd=project.folder(), env=environment, check=False).returncode
    return ExitStatus.GOOD if status == 0 else ExitStatus.BAD


def interpreter(catalog: Catalog, base: str) -> Path:
    """Return the Python of a base, which is made where it is missing. Raises MatrixError for an image."""
    environment = installed.current() if base == HOST else Bases(catalog, warn).provide(base)
    assert environment.path
    return environment.path
