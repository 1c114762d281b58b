"""The options that choose where cells run."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from matrix.cli import case_options, places
from matrix.ground.catalog.failure import GIB, Level
from matrix.ground.catalog.folders import SITE
from matrix.ground.catalog.machine import Cuda, Gpu, Machine
from matrix.ground.catalog.model import HOST
from matrix.ground.catalog.schema import Identifier
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.planned import Planned
from matrix.prove.execution.engine import Engines
from matrix.prove.provision.host import LocalSite
from tests.unit.catalogs import catalog, failure, planned

KNOWN = catalog(failure())
ON_CPU = planned(KNOWN)
ON_GPU = replace(ON_CPU, level=Level.GPU)
AT_HOST = replace(ON_GPU, cell=replace(ON_GPU.cell, base=Identifier(HOST)))


def options(*words: str) -> argparse.Namespace:
    return case_options.parser_of("places").parse_args(words)


def test_this_machine_is_the_default() -> None:
    engine, site = places.engine_of(KNOWN, options(), jobs=1)
    assert isinstance(engine, Engines)
    assert site is None


def test_folders_of_failures_reach_processes_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They start in the project's folder; a relative folder was not found there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(places, "engines", lambda known, jobs, workers, environ: environ)
    environ: Any = places.engine_of(KNOWN, options(), 1, 1, {SITE: "failures"})[0]
    assert environ == {SITE: str(tmp_path / "failures")}


@pytest.mark.parametrize(
    ("words", "workers", "message"),
    [
        (("--partition", "gpu"), 1, "require --engine slurm"),
        (("--sbatch=--account=me",), 1, "require --engine slurm"),
        (("--engine", "slurm"), 2, "-n is for this machine"),
    ],
)
def test_options_that_contradict_are_refused(words: tuple[str, ...], workers: int, message: str) -> None:
    with pytest.raises(MatrixError, match=message):
        places.engine_of(KNOWN, options(*words), 1, workers)


@pytest.mark.parametrize(
    ("cases", "gpus", "xdist", "workers"),
    [
        ([ON_CPU], 8, True, 1),
        ([ON_CPU, ON_GPU], 8, True, 12),
        ([ON_GPU], 1, True, 12),
        ([ON_GPU], 16, True, 16),
        ([ON_GPU], 0, True, 1),
        ([AT_HOST], 8, True, 12),
        ([AT_HOST], 8, False, 1),  # this environment's own cases need pytest-xdist in it
        ([AT_HOST, ON_GPU], 8, False, 12),
    ],
)
def test_cores_and_gpus_bound_the_cases(
    cases: list[Planned], gpus: int, xdist: bool, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if xdist else None)
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    for memory, bound in ((None, workers), (40 * GIB, min(workers, max(gpus, 5)))):
        site = LocalSite(Machine("550", gpus, memory=memory), user_mode=lambda: Cuda(gpus=(Gpu("H100"),) * gpus))
        assert places.workers_for(cases, site) == bound
