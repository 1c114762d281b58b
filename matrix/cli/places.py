"""The options that choose where cells run, and the engines that they select."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from matrix.ground.catalog.failure import GIB, Level
from matrix.ground.catalog.folders import with_site
from matrix.ground.catalog.model import GIVEN, HOST, Catalog, Container
from matrix.ground.catalog.stack import ABSENT, MCORE, TE
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.planned import Planned
from matrix.prove.bisection.axes import SOURCED
from matrix.prove.execution import inside
from matrix.prove.execution.engine import Engine, Engines, HostEngine, LocalEngine
from matrix.prove.execution.inside import Images
from matrix.prove.execution.slurm import client as slurm
from matrix.prove.execution.slurm.queue import ClusterSite
from matrix.prove.execution.slurm.slurm_engine import Slurm
from matrix.prove.planning.case_request import with_host
from matrix.prove.provision import host, tools
from matrix.prove.provision.bases import WITH_GPU_PACKAGES, Bases, environment_at, program_of
from matrix.prove.provision.image_builds import Builder
from matrix.read import package_source
from matrix.read.package_source import SourceKind
from matrix.show.terminal import warn

BUSY: Final = 0.75  # cases at a time for each core: most import, and a case of several ranks imports once
MEMORY: Final = 8 * GIB  # of the host for each: ranks of megatron-core hold 1 - 2 GiB, and so do the imports they share


def engine_of(
    known: Catalog, parsed: argparse.Namespace, jobs: int, workers: int = 1, environ: Mapping[str, str] = os.environ
) -> tuple[Engine, host.ExecutionSite | None]:
    """Return the engine that the options select, and its execution site; None for this machine.

    `workers` cases run at a time on each base. `environ` are the variables from which its processes get theirs.
    """
    environ = with_site(environ)  # its processes start in another folder than this one
    if parsed.engine == "slurm":
        if workers > 1:
            raise MatrixError(
                "-n is for this machine", got="-n with --engine slurm", fix="leave -n out: Slurm schedules"
            )
        cluster = ClusterSite(known, host.look(), slurm.of(parsed.partition, parsed.sbatch))
        bases = Bases(known, warn, environ={**environ, **WITH_GPU_PACKAGES})
        maker = LocalEngine(bases, only_make=True, environ=environ)
        return Slurm(cluster, maker, environ=environ), cluster
    if parsed.partition or parsed.sbatch:
        raise MatrixError("--partition and --sbatch require --engine slurm", expected="--engine slurm with them")
    return engines(known, jobs, workers, environ), None


def engines(known: Catalog, jobs: int, workers: int = 1, environ: Mapping[str, str] = os.environ) -> Engines:
    """Return the engine for each kind of base: containers, the host, bases of wheels, of which `jobs` run at a time.

    `workers` cases run at a time on each base; in an image that has pytest-xdist.
    """
    local = LocalEngine(Bases(known, warn, environ=environ), jobs, workers=workers, environ=environ)
    ids = {*(image.id for image in known.images), *(container.id for container in known.containers)}
    return Engines(
        ids, Images(known, workers=workers, environ=environ), Engines({HOST}, HostEngine(workers, environ), local)
    )


def workers_for(items: Iterable[Planned], here: host.LocalSite) -> int:
    """Return the number of cases that run at a time on each base by default.

    At level gpu it is what the cores and the memory allow, and one for each GPU: a case holds no GPU while it imports,
    and cases share one. Without pytest-xdist in this environment, its own cases run one at a time.
    """
    on_gpu = {item.cell.base for item in items if item.level is Level.GPU}
    if not on_gpu or (on_gpu == {HOST} and importlib.util.find_spec("xdist") is None):
        return 1
    gpus = len(here.offers(Level.GPU).gpus or ())
    most = [int(BUSY * (os.cpu_count() or 1)), *([here.machine.memory // MEMORY] if here.machine.memory else [])]
    return max(gpus, min(most)) if gpus else 1


def with_environments(catalog: Catalog, texts: Iterable[str]) -> Catalog:
    """Return the catalog with a base for each environment that the texts name, by its folder or its Python."""
    for program in filter(None, (program_of(word) for text in texts for word in (text, *text.split()))):
        environment = environment_at(program)
        content = json.dumps([program, environment.python, sorted(environment.packages.items())])
        id = f"{GIVEN}{hashlib.sha256(content.encode()).hexdigest()[:8]}"
        if catalog.find_base(id) is None:
            catalog = with_host(catalog, environment.packages, environment.minor, id=id, program=program)
    return catalog


def environment_cell(catalog: Catalog, word: str) -> str:
    """Return the cell of an environment that `with_environments` added, with its packages; "" for another word."""
    program = program_of(word)
    for base in catalog.wheels if program else ():
        if base.program == program:
            packages = environment_at(program).packages
            return catalog.cell(base.id, {name: packages.get(name, ABSENT) for name in (MCORE, TE)}).id
    return ""


def missing_images(catalog: Catalog, planned: Sequence[Planned]) -> list[Container]:
    """Return the images that are not local and whose cases can run on this machine."""
    return inside.to_pull(catalog, planned, host.look(), tools.find())


def pull(catalog: Catalog, planned: Sequence[Planned], parsed: argparse.Namespace, say: Callable[[str], None]) -> None:
    """Pull the missing images of these cases. Raises MatrixError with another engine than this machine's."""
    if parsed.engine != "local":
        raise MatrixError("--pull is for this machine", got="--pull with --engine slurm", fix="leave --pull out")
    if absent := missing_images(catalog, planned):
        inside.pull(absent, Builder(say), say)


def source_of(word: str) -> str:
    """Return the source that a word names, such as mcore=./Megatron-LM@main, with its commit; "" for another word.

    A release's tag stays. A clone or its folder alone is that of the package which it contains. Raises MatrixError.
    """
    name, _, text = word.partition("=")
    text = host.load_configuration().resolve(text if name in SOURCED else word)
    if not (name in SOURCED and "/" in text) and not Path(text.partition("@")[0]).is_dir():
        return ""
    errors = []
    for short_name in [name] if name in SOURCED else SOURCED:
        try:
            contents = package_source.inspect(package_source.parse(text, SOURCED[short_name]))
        except MatrixError as error:
            errors.append(error)
            continue
        is_commit = contents.source.kind is SourceKind.GIT and "+" in contents.version
        source = replace(contents.source, revision=contents.identity.split()[1]) if is_commit else contents.source
        return f"{short_name}={source}"
    if name in SOURCED:
        raise errors[0]
    raise MatrixError(
        "neither an environment nor a source of a package",
        where=word,
        got=errors[0].brief,
        expected=package_source.FORMS,
    )
