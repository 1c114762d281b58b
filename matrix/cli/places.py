"""Where cells run: the options that choose it, and the engines behind them."""

from __future__ import annotations

import argparse

from matrix.catalog.model import HOST, Catalog
from matrix.errors import MatrixError
from matrix.execution.engine import Engine, Engines, Here, Tox
from matrix.execution.images import Images
from matrix.execution.slurm import commands as slurm
from matrix.execution.slurm.engine import Slurm
from matrix.provision import host


def add_places(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose where cells run."""
    parser.add_argument("--engine", choices=("local", "slurm"), default="local", help="this machine, or array jobs")
    parser.add_argument("--partition", default="", metavar="NAME", help="Slurm's, for --engine slurm")
    parser.add_argument("--sbatch", action="append", default=[], metavar="OPTION", help="--sbatch=--account=me")


def engine_of(known: Catalog, parsed: argparse.Namespace, jobs: int) -> tuple[Engine, host.ExecutionSite | None]:
    """Return the engine that the options choose, and the place that it runs on where that is not this machine."""
    if parsed.engine == "slurm":
        commands = slurm.of(parsed.partition, parsed.sbatch)
        cluster = Slurm(known, host.look(), Tox(jobs, only_make=True), commands)
        return cluster, cluster
    if parsed.partition or parsed.sbatch:
        raise MatrixError("--partition and --sbatch speak to Slurm", expected="--engine slurm with them")
    return engines(known, jobs), None


def engines(known: Catalog, jobs: int) -> Engines:
    """Return what runs the bases: containers for images, pytest for the host, `jobs` tox environments at a time."""
    ids = {*(image.id for image in known.images), *(container.id for container in known.containers)}
    return Engines(ids, Images(known), Engines({HOST}, Here(), Tox(jobs)))
