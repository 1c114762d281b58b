"""A plugin for pytest in the environment of a rehearsal: its cases are small, and run on stand-ins of the device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from matrix.ground.catalog.failure import Expectation
from matrix.ground.catalog.loading import load
from matrix.ground.catalog.model import Catalog
from matrix.ground.verdicts.planned import Planned
from matrix.prove.execution import installation, session
from matrix.prove.execution.ranks.rank_spec import RankJob
from matrix.prove.execution.reproduction import Reproduction
from matrix.prove.provision.overlays import Overlays, OverlaySpec
from matrix.prove.provision.te_wheels import ReleaseBuild

from .sizes import small

TARGET: Final = f"{Path(__file__).with_name('device.py')}:rehearse"  # `tests` of an installed wheel has no rehearsals
real_job: Final = Reproduction._job
real_reproduction: Final = session.Session.reproduction
real_compile: Final = Overlays.compile


def small_catalog(*folders: Path) -> Catalog:
    """Return the catalog with small cases."""
    catalog = load(*folders)
    failures = (replace(failure, case=tuple(map(small, failure.case))) for failure in catalog.failures)
    return replace(catalog, failures=tuple(failures))


def rehearsed(own: Reproduction, planned: Planned, function: tuple[str, str], path: tuple[str, ...]) -> RankJob:
    """Return the job of a case, or of the writer of its checkpoint, with its body inside the stand-ins."""
    job = real_job(own, planned, function, path)
    return replace(job, target=TARGET, kwargs={"target": job.target, "arguments": dict(job.kwargs)})


def reproduction(own: session.Session, planned: Planned) -> Reproduction:
    """Return the reproduction of a case; small sizes break nothing, so the catalog's expectation is not theirs."""
    small_sizes = own.installation.catalog.failure(planned.failure).case_named(planned.case).rehearsal
    return real_reproduction(own, replace(planned, expectation=Expectation.UNKNOWN) if small_sizes else planned)


def without_extension(own: Overlays, build: ReleaseBuild, interpreter: Path, folder: Path, spec: OverlaySpec) -> None:
    """Lay a Transformer Engine without its compiled parts: the ranks have stand-ins of them."""
    real_compile(own, build, interpreter, folder, spec)
    for compiled in folder.glob("**/*transformer_engine*.so"):
        compiled.unlink()


setattr(installation, load.__name__, small_catalog)  # this process runs rehearsals alone
setattr(session.Session, reproduction.__name__, reproduction)
setattr(Reproduction, real_job.__name__, rehearsed)
setattr(Overlays, real_compile.__name__, without_extension)
