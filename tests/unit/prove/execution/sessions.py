"""Sessions on a small catalog, in an image or on GPUs, for tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from matrix.ground.catalog.failure import CaseNeed, Level
from matrix.ground.catalog.machine import Cuda, Gpu, Machine, PythonEnvironment
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.prove.execution import installation
from matrix.prove.execution.case_context import Options
from matrix.prove.execution.ranks.rank_spec import Admission, RankJob
from matrix.prove.execution.session import Session
from matrix.prove.provision import case_overlays as provision
from matrix.prove.provision.case_overlays import Provision
from matrix.prove.provision.host import LocalSite
from matrix.prove.provision.overlays import Overlay
from matrix.read.machine import installed as environments
from tests.unit.catalogs import case, catalog, failure, planned, wheels

KNOWN = catalog(failure())


CASE = planned(KNOWN)


BASE = PythonEnvironment("3.10.13", {"torch": "2.4.0", "numpy": "1.26.4", "pytest": "9.2.0"})


def fallback(folder: Path, monkeypatch: pytest.MonkeyPatch, *needs: CaseNeed) -> Session:
    """Return a session on a fallback Python, whose overlay lacks the dataset helper, that its case may need."""
    entry = failure(case=(replace(case(), needs=needs),))
    known = catalog(entry, wheels=(wheels("2.4.0", fallbacks=("3.12",)), wheels("2.3.1")))
    monkeypatch.setattr(installation, "load", lambda: known)
    monkeypatch.setattr(environments, "current", lambda: replace(BASE, python="3.12.1"))
    return provided(folder, Provision((Overlay(folder / "mcore", "ab", {}, "no compiled dataset helper: no wheel"),)))


def of_host(current: Session, machine: LocalSite) -> None:
    """Replace the machine of a session."""
    current.installation = replace(current.installation, host=machine)


def provided(folder: Path, given: Provision, key: str = CASE.key) -> Session:
    """Return a session in an image with this provision in its file of overlays."""
    provision.write(folder / "overlays.json", {key: given})
    return Session(Options("torch-2.4.0", folder, overlays=folder / "overlays.json", image="sha256:ab"), folder)


OWN = "/usr/lib/libcuda.so.535.129.03"


def on_gpus(folder: Path, count: int, place: str = "", cuda: Cuda | None = None) -> tuple[Session, list[RankJob]]:
    """Return a session on a host with `count` GPUs, and the list of the jobs that it runs."""
    current, jobs = Session(Options("torch-2.4.0", folder, place=place), folder), list[RankJob]()

    class Runner:
        def run(self, job: RankJob, admission: Admission) -> Outcome:
            with admission() as variables:
                jobs.append(replace(job, env=variables))
            return Outcome(OutcomeKind.PASSED)

        def __exit__(self, *_: object) -> None:
            """Do nothing."""

    gpus = tuple(Gpu("H100", "9.0", 80, True, f"GPU-{place}") for place in range(count))
    found = cuda or Cuda("12.2", OWN, gpus)
    of_host(current, LocalSite(Machine("535.129.03", count, architecture="x86_64"), user_mode=lambda: found))
    current.__dict__["supervisor"] = Runner()
    return current, jobs


ON_GPUS = replace(CASE, level=Level.GPU, gpus=2)
