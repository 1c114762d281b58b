"""An engine without processes, which runs a plan in the way of a run's pytest processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.machine import Machine, PythonEnvironment
from matrix.ground.catalog.model import Catalog
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.judge import judge
from matrix.ground.verdicts.outcome import Outcome
from matrix.ground.verdicts.planned import Planned
from matrix.ground.verdicts.record import MACHINE
from matrix.prove.execution.cache_key import case_key
from matrix.prove.execution.engine import EngineRequest, EngineResult
from matrix.prove.execution.relay import Sender
from matrix.prove.execution.reproduction import CaseContext, make_record
from matrix.prove.planning.rerun import reproduce_line
from matrix.prove.provision import host
from matrix.prove.provision.case_overlays import overlay_digest, overlay_specs
from matrix.prove.provision.host import LocalSite
from matrix.prove.store import journal
from matrix.read.machine import installed as environments
from tests.unit.catalogs import shown

HOST = LocalSite(Machine("none", 0, architecture="x86_64"))


class FakeEngine:
    """Gives each case the outcome of `ends` (default: as the catalog expects), and stops after `limit` of them.

    When it stops early it returns `status`, or raises `status` when it is an exception.
    """

    def __init__(
        self,
        known: Catalog,
        *,
        ends: Callable[[Planned], Outcome] | None = None,
        limit: int | None = None,
        status: int | BaseException = 0,
        lack: str = "",
        refused: Mapping[str, str] | None = None,
        unready: MatrixError | None = None,
        machine: str = "",
    ) -> None:
        self.unready, self.machine = unready, machine
        self.lack, self.refused = lack, refused or {}
        self.known, self.ends, self.limit, self.status = known, ends or self.as_expected, limit, status
        self.ran: list[str] = []
        self.bases: list[str] = []

    def as_expected(self, item: Planned) -> Outcome:
        broken = item.expectation.value == "broken"
        return shown(self.known.failure(item.failure)) if broken else decode(Outcome, {"kind": "passed"})

    def ready(self, bases: Collection[str]) -> None:
        if self.unready:
            raise self.unready

    def lacks(self, base: str) -> str:
        return self.lack if base.startswith("ngc") else ""

    def installed(self, base: str) -> PythonEnvironment | None:
        return environments.at(environment_folder(base))

    def run(self, request: EngineRequest) -> EngineResult:
        folder = request.run.folder
        request.log.write_text("what pytest printed\n")
        self.bases += request.bases
        sender = Sender(request.relay, lambda: None)
        with journal.Journal.new(folder) as kept:
            for number, item in enumerate(request.pending()):
                started = kept.started(item.key)
                if number == self.limit:
                    sender.close()
                    if isinstance(self.status, BaseException):
                        raise self.status
                    return EngineResult(self.status, self.refused)
                self.ran.append(item.key)
                outcome = self.ends(item)
                judgement = judge(self.known.failure(item.failure), item.expectation, outcome, self.known.failures)
                where = CaseContext(
                    run=folder.name,
                    resolved={MACHINE: self.machine} if self.machine else {},
                    content=content(item, self.known),
                    reproduce=reproduce_line(item, os.environ),
                )
                record = make_record(item, outcome, judgement, where, started)
                kept.result(record)
                sender.result(record)
        sender.close()
        return EngineResult(self.status if isinstance(self.status, int) else 0, self.refused)


def environment_folder(base: str) -> Path:
    """Return the folder of the environment of a base in a test."""
    return Path(os.environ["BASES_OF_TESTS"], base)


def content(item: Planned, known: Catalog) -> str:
    """Return the cache key that a session in the environment of the base computes."""
    environment = environments.at(environment_folder(item.cell.base))
    if environment is None:
        return ""
    specs = overlay_specs(item, environment, host.load_configuration())
    digests = [overlay_digest(spec) for spec in specs]
    return case_key(item, known.failure(item.failure), environment, digests, HOST)


def make_environment(folder: Path, packages: Mapping[str, str]) -> None:
    """Write the files of a virtual environment that the project reads."""
    site = folder / "lib" / "python3.10" / "site-packages"
    site.mkdir(parents=True, exist_ok=True)
    (folder / "pyvenv.cfg").write_text("version_info = 3.10.13.final.0\n")
    for name, version in packages.items():
        info = site / f"{name}-{version}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
