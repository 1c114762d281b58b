"""The session of one pytest process in a cell's interpreter: its cases, their context, and its journal."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from matrix.catalog.failure import Failure, Level
from matrix.catalog.loading import load
from matrix.catalog.model import HOST, Catalog, ReaderBase, Wheels
from matrix.catalog.versions import NONE
from matrix.errors import MatrixError
from matrix.execution import interrupt
from matrix.execution.cache_key import case_key
from matrix.execution.gpus import Pool, ReservingRunner, wait_s
from matrix.execution.ranks import mpirun
from matrix.execution.ranks.supervisor import Supervisor
from matrix.execution.reading import read_case
from matrix.execution.relay import Sender
from matrix.execution.reproduction import DEADLINE_S, CaseContext, JobRunner, Reproduction, hidden
from matrix.planning.cases import on_python
from matrix.planning.estimates import Durations
from matrix.planning.host_cases import LABEL, cases_here, with_host
from matrix.planning.packing import Demand
from matrix.planning.requirements import Placement, offered, place
from matrix.planning.rerun import plan_entry, reproduce_line
from matrix.planning.selection import select
from matrix.provision import case_overlays as provision
from matrix.provision import configuration, drivers, host, python_downloads, sources
from matrix.provision import installed as environments
from matrix.provision.case_overlays import Provision
from matrix.provision.nvidia import devices
from matrix.provision.nvidia.cuda import Cuda
from matrix.provision.nvidia.nvml import Nvml
from matrix.provision.overlays import Overlay, Overlays, OverlaySpec, default_root
from matrix.provision.tox_environments import base_name
from matrix.store import journal, night
from matrix.store.paths import Paths, make_folder
from matrix.store.run_lock import RunLock
from matrix.verdicts.outcome import Outcome
from matrix.verdicts.planned import Planned
from matrix.verdicts.record import Record

AXES: Final = ("torch", "megatron-core", "transformer-engine")  # the packages of a cell


@dataclass(frozen=True)
class Options:
    """The options of a session. `base` is the base of this interpreter; "" derives it from the installed packages.

    With `run_folder` the session runs its part of that run's plan; without, it creates a run. `keys` limits the plan
    to these cases, unless empty. `image` is the content digest of the image of this process, `overlays` the file with
    the overlays of its cases, `place` the name of the machine in records.
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
    """Return the seconds of MEGATRIX_DEADLINE, DEADLINE_S without it."""
    try:
        return float(text or DEADLINE_S)
    except ValueError:
        raise MatrixError("not a time", where="MEGATRIX_DEADLINE", got=text, expected="seconds, such as 120") from None


class Session:
    """The session of one pytest process. Its journal, supervisor and overlays are created at first use."""

    def __init__(self, options: Options, out: Path) -> None:
        interrupt.once()
        if sys.flags.optimize:
            raise MatrixError("ranks would run without asserts", got="python -O or PYTHONOPTIMIZE", fix="leave it out")
        self.options, self.out = options, out
        self.environment = environments.current()
        self.host = host.look()
        self.catalog, self.base = self._place(load())
        self.configuration = configuration.load()
        self._overlays: dict[tuple[sources.Source, ...], Overlay] = {}
        self.records: list[Record] = []
        self.say: Callable[[str], None] = lambda text: None  # prints a message while a case waits
        self._lock: RunLock | None = None

    def _place(self, catalog: Catalog) -> tuple[Catalog, str]:
        """Return the catalog and the id of the base; without a configured base, the host is added as one."""
        if self.options.base:
            base = catalog.base(self.options.base)
            if isinstance(base, Wheels) and "torch" not in self.environment.packages:
                raise MatrixError(
                    f"this environment is not {base.id}", got=f"no torch in {sys.prefix}",
                    expected=f"torch {base.torch}", fix=f"tox run -e {base_name(base.id)}, or unset MEGATRIX_BASE",
                )  # fmt: skip
            return catalog, base.id
        label = os.environ.get(LABEL, "")
        return with_host(catalog, self.environment.packages, self.environment.minor, label), HOST

    @cached_property
    def planned(self) -> list[Planned]:
        """Return the cases of this session: those of its run's plan without a result, or all of its base."""
        if self.options.run_folder:
            plan = night.planned(self.options.run_folder)
            done = journal.read(self.options.run_folder).results
            selected = self.options.keys or {item.key for item in plan}
            cases = [item for item in plan if item.cell.base == self.base and item.key in selected - done.keys()]
            return [self._here(item) for item in cases]
        levels = (Level.CONTRACT, Level.CPU, *((Level.GPU,) if self.host.listed else ()))
        cases = cases_here(self.catalog, self.base, self.environment.packages, levels, self.options.te_line)
        cases = Durations(self.catalog, {}).timed(map(self._here, cases))
        return select(cases, self.options.select) if self.options.select else cases

    def _here(self, item: Planned) -> Planned:
        """Return a case in the cell of this environment, whose Python may not be the base's first."""
        return on_python(self.catalog, item, self.environment.minor)

    def choose(self, keys: Collection[str]) -> None:
        """Limit the plan to these cases: those that pytest did not deselect."""
        self.planned = [item for item in self.planned if item.key in keys]

    @cached_property
    def run_folder(self) -> Path:
        """Return the folder of the run; a run of this session makes it with its journal."""
        return self.options.run_folder or Paths(self.out).next_run(self.base)

    @cached_property
    def supervisor(self) -> Supervisor:
        """Return the supervisor; its forkserver starts with the first case, and imports torch if a case needs that."""
        cases = (self.catalog.failure(item.failure).case_named(item.case) for item in self.planned if item.reproducible)
        return Supervisor() if any(case.preload for case in cases) else Supervisor(preload=())

    @cached_property
    def gpus(self) -> Pool:
        """Return the GPUs that this process may use, shared with other processes that run cases on this machine."""
        return Pool(
            [gpu.uuid for gpu in self.host.offers(Level.GPU).gpus or ()],
            say=lambda text: self.say(text),
            memory=self.host.memory,
            wait_s=wait_s(os.environ),
        )

    @cached_property
    def sender(self) -> Sender:
        """Return the connection to the process that started this one; when that ends, this one is interrupted."""
        return Sender(self.options.relay, lambda: os.kill(os.getpid(), signal.SIGINT))

    @cached_property
    def journal(self) -> JournalSink | Sender:
        """Return the session's journal; for a run of this session, write its plan first."""
        if not self.options.run_folder:
            make_folder(self.run_folder)
            self._lock = RunLock(self.run_folder)
            night.write_plan(self.run_folder, [plan_entry(item) for item in self.planned])
        return JournalSink(journal.Journal.new(self.run_folder), self.sender, self.records.append)

    @property
    def header(self) -> str:
        """Return the line of the pytest header: the base, and the installed packages of the cell's axes."""
        have = self.environment.packages
        installed = [f"{name} {have[name]}" for name in AXES if name in have]
        return f"megatrix: base {self.base}: {', '.join([f'Python {self.environment.python}', *installed])}"

    def reproduction(self, planned: Planned) -> Reproduction:
        """Return the reproduction of a case."""
        failure = self.catalog.failure(planned.failure)
        case = failure.case_named(planned.case) if planned.reproducible else None
        overlays: tuple[Overlay, ...] = ()
        written: tuple[Overlay, ...] = ()
        writer = planned.writer
        reason = self._lack(planned)
        if not reason:
            try:
                overlays = self._overlays_of(planned)
                written = self._overlays_of(writer) if writer else ()
            except MatrixError as error:
                reason = error.brief + self._better_python
        if not reason:
            reason = self._lack(planned, overlays)
        placed = place(case, planned, self.host.offers(planned.level)) if case and not reason else None
        held = placed if isinstance(placed, Placement) else Placement()
        cuda = self.host.user_mode() if held.gpus else None
        context = CaseContext(
            path=tuple(str(overlay.path) for overlay in overlays),
            log_dir=self.run_folder / "logs" / planned.key.replace("/", "_").replace(" ", "/"),
            deadline_s=self.options.deadline_s,
            resolved={**self._resolved(overlays, cuda), **self._devices(held, cuda)},
            content=case_key(
                planned,
                failure,
                self.environment,
                [overlay.digest for overlay in (*overlays, *written)],
                self.host,
                self.options.image,
            ),
            notes=(
                *self._notes(overlays),
                *self._hidden(planned),
                *filter(None, [held.note, drivers.note(self.catalog, planned, self.host.driver, cuda)]),
            ),
            reproduce=reproduce_line(planned),
            run=self.run_folder.name,
            unavailable=reason,
            writer_path=tuple(str(overlay.path) for overlay in written),
            checkpoint=self._checkpoint(writer, failure, written) if writer else Path(),
            clones=self.configuration.sources,
            backend=held.backend,
        )

        def runs() -> JobRunner:
            if not case or not held.gpus:
                return self.supervisor
            demand = Demand(held.gpus, planned.seconds, case.limits.memory or 0)
            return ReservingRunner(self.supervisor, self.gpus, demand)

        def read() -> Outcome:
            return read_case(failure, failure.case_named(planned.case), planned.cell)

        return Reproduction(planned, failure, self.catalog.failures, context, runs, self.journal, read)

    def _checkpoint(self, writer: Planned, failure: Failure, overlays: Sequence[Overlay]) -> Path:
        """Return the folder of a writer's checkpoint: cases whose writer is the same share it."""
        digests = [overlay.digest for overlay in overlays]
        content = case_key(writer, failure, self.environment, digests, self.host, self.options.image)
        return self.run_folder / "checkpoints" / content[:20]

    def close(self) -> None:
        """Stop the forkserver and close the journal, if they were created."""
        if "supervisor" in self.__dict__:
            self.supervisor.__exit__(None, None, None)
        if "journal" in self.__dict__:
            self.journal.close()
        if self._lock:
            self._lock.release()

    def _lack(self, planned: Planned, overlays: Sequence[Overlay] | None = None) -> str:
        """Return what a case requires and this interpreter, its overlays or the machine do not offer, "" if nothing."""
        have = self.environment
        offer = offered(self.catalog, self.base, packages=have.packages, features=have.features)
        if overlays is not None:
            helpers = (overlay.no_helper + self._better_python for overlay in overlays if overlay.no_helper)
            found = mpirun.find([str(overlay.path) for overlay in overlays]) is not None
            offer = replace(offer, mpirun=found, no_helper=next(helpers, ""))
        return str(self.host.lack(self.catalog, planned, offer) or "")

    def _devices(self, held: Placement, cuda: Cuda | None) -> dict[str, str]:
        """Return the facts of a record on GPUs: how many are held, their model, SM and NVLinks, NCCL, the backend."""
        if cuda is None:
            return {}
        kinds = dict.fromkeys(f"{gpu.name}, SM {gpu.sm}" for gpu in cuda.gpus)
        cards = (devices.management() or Nvml()).gpus
        links = dict.fromkeys(f"{card.up} of {card.links} links up" if card.links else "none" for card in cards)
        versions = [have for name, have in self.environment.packages.items() if name.startswith("nvidia-nccl-cu")]
        nccl = next(iter(versions), os.environ.get("NCCL_VERSION", ""))
        return {
            "GPUs": f"{held.gpus} of {len(cuda.gpus)} x {' and '.join(kinds)}",
            "NVLink": " and ".join(links) or "unknown",
            **({"NCCL": nccl} if nccl else {}),
            "backend": held.backend,
        }

    def _overlays_of(self, planned: Planned) -> tuple[Overlay, ...]:
        """Return the overlays of a case; in an image, those listed in the file of overlays."""
        if self.options.overlays is None:
            specs = provision.overlay_specs(planned, self.environment, self.configuration, Path(sys.executable))
            return tuple(self._provide(spec) for spec in specs)
        provided = self._provided.get(planned.key, Provision(reason="no overlays were provided for this case"))
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

    @property
    def _better_python(self) -> str:
        """Return the command that installs the base's preferred Python, where another stands in for it; else ""."""
        base = self.catalog.bases.get(self.base)
        if not isinstance(base, Wheels) or self.environment.minor not in base.fallbacks:
            return ""
        return f"; Python {base.pythons[0]} can run it: {python_downloads.command(base.pythons[0])}"

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
        note = f"Transformer Engine {engine} of this base is hidden from the ranks: it is not part of the cell"
        case = self.catalog.failure(planned.failure).case_named(planned.case) if planned.reproducible else None
        return (note,) if engine and case and hidden(case, planned) else ()

    def _notes(self, overlays: Iterable[Overlay]) -> tuple[str, ...]:
        base = self.catalog.bases.get(self.base)
        expected = base.pythons[0] if isinstance(base, (Wheels, ReaderBase)) else self.environment.minor
        other = (
            () if expected == self.environment.minor else (f"ran on Python {self.environment.python}, not {expected}",)
        )
        place = (f"ran on {self.options.place}",) if self.options.place else ()
        return (*(overlay.no_helper for overlay in overlays if overlay.no_helper), *other, *place)


class JournalSink:
    """Writes to the journal, then to the relay and a callback."""

    def __init__(self, kept: journal.Journal, sender: Sender, also: Callable[[Record], None]) -> None:
        self._journal, self._sender, self._also = kept, sender, also

    def started(self, key: str) -> str:
        """Store that a case starts, and send it."""
        at = self._journal.started(key)
        self._sender.started(key)
        return at

    def result(self, record: Record) -> str:
        """Store a record and send it."""
        at = self._journal.result(record)
        self._sender.result(record)
        self._also(record)
        return at

    def close(self) -> None:
        """Close the connection and the journal."""
        self._sender.close()
        self._journal.close()


def item_name(planned: Planned) -> str:
    """Return the name of a case in pytest, unique in a plan.

    It has no brackets: pytest reads them as parameters of a function, and --lf does not find such an item.
    """
    return f"{planned.failure}-{planned.case}-{planned.level.value}-{planned.cell.id}"
