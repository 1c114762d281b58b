"""What one pytest process does in a cell's interpreter: which cases are its, what each runs with, where it is kept."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from matrix.catalog.failure import Level
from matrix.catalog.loading import load
from matrix.catalog.model import HOST, Catalog, ReaderBase, Wheels
from matrix.catalog.versions import NONE
from matrix.errors import MatrixError
from matrix.execution import interrupt
from matrix.execution.cache_key import case_key
from matrix.execution.gpus import Pool, ReservingRunner, visible
from matrix.execution.ranks import mpirun
from matrix.execution.ranks.supervisor import Supervisor
from matrix.execution.reading import read_case
from matrix.execution.relay import Sender
from matrix.execution.reproduction import DEADLINE_S, CaseContext, JobRunner, Reproduction, hidden
from matrix.planning.planned import Planned
from matrix.planning.rerun import plan_entry, reproduce_line
from matrix.planning.selection import select
from matrix.planning.standing import cases_here, with_host
from matrix.provision import case_overlays as provision
from matrix.provision import configuration, drivers, host, sources
from matrix.provision import installed as environments
from matrix.provision.case_overlays import Provision
from matrix.provision.nvidia import devices
from matrix.provision.nvidia.cuda import Cuda
from matrix.provision.overlays import Overlay, Overlays, OverlaySpec, default_root
from matrix.store import journal, night
from matrix.store.paths import Paths, make_folder
from matrix.verdicts.outcome import Outcome
from matrix.verdicts.record import Record

AXES: Final = ("torch", "megatron-core", "transformer-engine")  # the packages of a cell


@dataclass(frozen=True)
class Options:
    """What the session was asked. `base` is the base this interpreter stands for, "" = find out from what is installed.

    With `run_folder` the session works off its part of that run's plan; without, it makes a run of its own.
    `keys` are those of the plan that are meant, none for all. `image` is the content digest of the image around us,
    `overlays` the file that says what was provided for its cases, `place` the machine as records are to name it.
    """

    base: str = ""
    run_folder: Path | None = None
    select: str = ""
    deadline_s: float = DEADLINE_S
    relay: str = ""
    te_line: str = ""
    image: str = ""
    overlays: Path | None = None
    keys: frozenset[str] = frozenset()
    place: str = ""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], **given: Any) -> Options:
        """Read MEGATRIX_BASE, _RUN, _DEADLINE (seconds), _RELAY, _TE, _IMAGE, _OVERLAYS, _KEYS (JSON) and _PLACE."""
        folder, overlays = environ.get("MEGATRIX_RUN"), environ.get("MEGATRIX_OVERLAYS")
        return cls(
            base=environ.get("MEGATRIX_BASE", ""),
            run_folder=Path(folder) if folder else None,
            deadline_s=deadline(environ.get("MEGATRIX_DEADLINE", "")),
            relay=environ.get("MEGATRIX_RELAY", ""),
            te_line=environ.get("MEGATRIX_TE", ""),
            image=environ.get("MEGATRIX_IMAGE", ""),
            overlays=Path(overlays) if overlays else None,
            keys=frozenset(json.loads(environ.get("MEGATRIX_KEYS", "[]"))),
            place=environ.get("MEGATRIX_PLACE", ""),
            **given,
        )


def deadline(text: str) -> float:
    """Return the seconds that MEGATRIX_DEADLINE asks for, DEADLINE_S without it."""
    try:
        return float(text or DEADLINE_S)
    except ValueError:
        raise MatrixError("not a time", where="MEGATRIX_DEADLINE", got=text, expected="seconds, such as 120") from None


class Session:
    """One pytest process. Its journal, its supervisor and its overlays are made when first needed."""

    def __init__(self, options: Options, out: Path) -> None:
        interrupt.once()
        self.options, self.out = options, out
        self.environment = environments.current()
        self.host = host.look()
        self.catalog, self.base = self._place(load())
        self.configuration = configuration.load()
        self._overlays: dict[tuple[sources.Source, ...], Overlay] = {}
        self.records: list[Record] = []

    def _place(self, catalog: Catalog) -> tuple[Catalog, str]:
        """Return the catalog, with the host in it as a base if it is one, and the base's id."""
        if self.options.base:
            return catalog, catalog.base(self.options.base).id
        return with_host(catalog, self.environment.packages, self.environment.minor), HOST

    @cached_property
    def planned(self) -> list[Planned]:
        """Return the cases of this session, those of its run's plan that have no result yet or all of its base."""
        if self.options.run_folder:
            plan = [Planned.from_json(case) for case in night.plan(self.options.run_folder)]
            done = journal.read(self.options.run_folder).results
            wanted = self.options.keys or {item.key for item in plan}
            return [item for item in plan if item.cell.base == self.base and item.key in wanted - done.keys()]
        levels = (Level.CONTRACT, Level.CPU, *((Level.GPU,) if self.host.gpus else ()))
        cases = cases_here(self.catalog, self.base, self.environment.packages, levels, self.options.te_line)
        return select(cases, self.options.select) if self.options.select else cases

    @cached_property
    def run_folder(self) -> Path:
        """Return the folder of the run; a run of this session's own gets its plan written."""
        if self.options.run_folder:
            return self.options.run_folder
        folder = Paths(self.out).run(new_run_id(self.base))
        make_folder(folder)
        night.write_plan(folder, [plan_entry(item) for item in self.planned])
        return folder

    @cached_property
    def supervisor(self) -> Supervisor:
        """Return the one supervisor; its fork-server starts with the first case."""
        return Supervisor()

    @cached_property
    def gpus(self) -> Pool:
        """Return the GPUs that this process may use, shared with all others of this machine that run cases."""
        return Pool(visible(self.host.gpus, os.environ))

    @cached_property
    def cuda(self) -> Cuda:
        """Return the user-mode driver that ranks get here. It is asked elsewhere: who calls cuInit may not fork."""
        return devices.ask(("cuda",)).cuda

    @cached_property
    def journal(self) -> JournalSink:
        """Return the session's journal."""
        sender = Sender(self.options.relay, lambda: os.kill(os.getpid(), signal.SIGINT))
        return JournalSink(journal.Journal.new(self.run_folder), sender, self.records.append)

    @property
    def told(self) -> str:
        """Return where this is, for whoever typed pytest: the base, and what is installed of the cell's axes."""
        have = self.environment.packages
        installed = [f"{name} {have[name]}" for name in AXES if name in have]
        return f"megatrix: base {self.base}: {', '.join([f'Python {self.environment.python}', *installed])}"

    def reproduction(self, planned: Planned) -> Reproduction:
        """Return the case, ready to run."""
        failure = self.catalog.failure(planned.failure)
        able, reason = self.host.can_run(planned)
        overlays: tuple[Overlay, ...] = ()
        if able:
            try:
                overlays = self._overlays_of(planned)
            except MatrixError as error:
                reason = error.brief
        if not reason and planned.launcher == mpirun.NAME and planned.level is not Level.CONTRACT:
            reason = mpirun.missing([str(overlay.path) for overlay in overlays])
        on_gpus = planned.level is Level.GPU and planned.gpus > 0
        cuda = self.cuda if on_gpus and not reason else None
        if cuda is not None:
            reason = self.gpus.lacks(planned.gpus) or drivers.unusable(cuda, planned.gpus)
        where = CaseContext(
            path=tuple(str(overlay.path) for overlay in overlays),
            log_dir=self.run_folder / "logs" / planned.key.replace("/", "_").replace(" ", "/"),
            deadline_s=self.options.deadline_s,
            resolved=self._resolved(overlays, cuda),
            content=case_key(
                planned,
                failure,
                self.environment,
                [overlay.digest for overlay in overlays],
                self.host,
                self.options.image,
            ),
            notes=(
                *self._notes(overlays),
                *self._hidden(planned),
                *filter(None, [drivers.note(self.catalog, planned, self.host.driver, cuda)]),
            ),
            reproduce=reproduce_line(planned),
            run=self.run_folder.name,
            unavailable=reason,
            clones=self.configuration.sources,
        )

        def runs() -> JobRunner:
            return ReservingRunner(self.supervisor, self.gpus, planned.gpus) if on_gpus else self.supervisor

        def read() -> Outcome:
            return read_case(failure, failure.case_named(planned.case), planned.cell)

        return Reproduction(planned, failure, self.catalog.failures, where, runs, self.journal, read)

    def close(self) -> None:
        """Stop the fork-server and close the journal, if they were made."""
        if "supervisor" in self.__dict__:
            self.supervisor.__exit__(None, None, None)
        if "journal" in self.__dict__:
            self.journal.close()

    def _overlays_of(self, planned: Planned) -> tuple[Overlay, ...]:
        """Return what is laid over the base for a case, in an image as it was provided from outside."""
        if self.options.overlays is None:
            specs = provision.overlay_specs(planned, self.environment, self.configuration, Path(sys.executable))
            return tuple(self._provide(spec) for spec in specs)
        provided = self._provided.get(planned.key, Provision(reason="nothing was provided for it"))
        if provided.reason:
            raise MatrixError(provided.reason)
        return provided.overlays

    @cached_property
    def _provided(self) -> dict[str, Provision]:
        return provision.read(self.options.overlays) if self.options.overlays else {}

    def _provide(self, spec: OverlaySpec) -> Overlay:
        if spec.sources not in self._overlays:
            self._overlays[spec.sources] = Overlays(default_root()).provide(spec)
        return self._overlays[spec.sources]

    def _resolved(self, overlays: Iterable[Overlay], cuda: Cuda | None) -> dict[str, str]:
        laid = {name: version for overlay in overlays for name, version in overlay.packages.items()}
        image = {"image": self.options.image} if self.options.image else {}
        driver = {"host driver": self.host.driver} if self.host.driver != NONE else {}
        if user := cuda and drivers.found(cuda, self.host.driver, inside=bool(image)):
            driver |= {"user-mode driver": user}
        host = {"host": self.host.machine, **driver}
        return {**self.environment.packages, **laid, "python": self.environment.python, **image, **host}

    def _hidden(self, planned: Planned) -> tuple[str, ...]:
        engine = self.environment.packages.get("transformer-engine", "")
        told = f"Transformer Engine {engine} of this base is hidden from the ranks: it plays no part"
        return (told,) if engine and hidden(planned) else ()

    def _notes(self, overlays: Iterable[Overlay]) -> tuple[str, ...]:
        base = self.catalog.bases.get(self.base)
        wanted = base.pythons[0] if isinstance(base, (Wheels, ReaderBase)) else self.environment.minor
        other = () if wanted == self.environment.minor else (f"ran on Python {self.environment.python}, not {wanted}",)
        place = (f"ran on {self.options.place}",) if self.options.place else ()
        return (*(note for overlay in overlays for note in overlay.notes), *other, *place)


class JournalSink:
    """Writes to the journal, then tells whoever listens."""

    def __init__(self, kept: journal.Journal, sender: Sender, also: Callable[[Record], None]) -> None:
        self._journal, self._sender, self._also = kept, sender, also

    def started(self, key: str) -> str:
        """Keep that a case is about to run, and say so."""
        at = self._journal.started(key)
        self._sender.begin(key)
        return at

    def result(self, record: Record) -> str:
        """Keep a record and pass it on."""
        at = self._journal.result(record)
        self._sender.send(record)
        self._also(record)
        return at

    def close(self) -> None:
        """Close the journal and hang up."""
        self._sender.close()
        self._journal.close()


def new_run_id(label: str) -> str:
    """Return an id for a run that starts now, to the microsecond; ids sort by time."""
    return f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S%f}Z-{label}"
