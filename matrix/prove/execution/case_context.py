"""What a case has in this process: its overlays, what it lacks, its notes, its cache key, its versions and hardware."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Final

from matrix.ground.cases.machine_requirements import (
    WITHOUT_GPU,
    BaseOffer,
    Placement,
    driver_note,
    offered,
    place,
    user_mode_driver,
)
from matrix.ground.catalog.failure import Case, Level
from matrix.ground.catalog.folders import default_root
from matrix.ground.catalog.machine import Cuda, Nvml, PythonEnvironment
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.versions import NONE
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.planned import Lack, Planned
from matrix.prove.execution.cache_key import case_key
from matrix.prove.execution.installation import Installation
from matrix.prove.execution.ranks import mpirun, shared_gpu
from matrix.prove.execution.reproduction import DEADLINE_S, CaseContext, deadline, hidden
from matrix.prove.planning.rerun import reproduce_line
from matrix.prove.provision import case_overlays as provision
from matrix.prove.provision import host
from matrix.prove.provision.case_overlays import Provision
from matrix.prove.provision.host import LocalSite
from matrix.prove.provision.overlays import Overlay, Overlays, OverlaySpec
from matrix.read.machine import hardware
from matrix.read.package_source import Source

NCCL: Final = "nvidia/nccl/lib/libnccl.so.2"  # in the wheel of NCCL


@dataclass(frozen=True)
class Resolved:
    """The facts of a case: its interpreter, its overlays, the machine, its GPUs. `image` is the digest of its image."""

    environment: PythonEnvironment
    host: LocalSite
    placement: Placement
    image: str

    @property
    def cuda(self) -> Cuda | None:
        """Return the report of the user-mode driver, None for a case without GPUs."""
        return self.host.user_mode() if self.placement.gpus else None

    def packages(self, overlays: Iterable[Overlay]) -> dict[str, str]:
        """Return package -> version, with python, image, host, drivers and GPUs."""
        versions = dict(self.environment.packages)
        for overlay in overlays:
            versions |= overlay.packages
        driver, cuda = self.host.machine.driver, self.cuda
        facts = {
            "python": self.environment.python or "unknown",
            "image": self.image,
            "host": self.host.machine.architecture,
            "host driver": "" if driver == NONE else driver,
            "user-mode driver": user_mode_driver(cuda, driver, inside=bool(self.image)) if cuda else "",
            **(self._devices(cuda) if cuda else {}),
        }
        return versions | {name: value for name, value in facts.items() if value}

    def notes(self, catalog: Catalog, planned: Planned) -> list[str]:
        """Return the notes on the GPUs and the driver."""
        driver = driver_note(catalog, planned, self.host.machine.driver, self.cuda)
        return list(filter(None, (self.placement.note, driver)))

    def _devices(self, cuda: Cuda) -> dict[str, str]:
        """Return how many GPUs are held, their model, SM and NVLinks, NCCL, the backend."""
        kinds = dict.fromkeys(f"{gpu.name}, SM {gpu.sm}" for gpu in cuda.gpus)
        cards = (hardware.management() or Nvml()).gpus
        links = dict.fromkeys(f"{card.up} of {card.links} links up" if card.links else "none" for card in cards)
        packages = self.environment.packages.items()
        versions = [version for name, version in packages if name.startswith("nvidia-nccl-cu")]
        nccl = str(self.placement.nccl or next(iter(versions), os.environ.get("NCCL_VERSION", "")))
        return {
            "GPUs": f"{self.placement.gpus} of {len(cuda.gpus)} x {' and '.join(kinds)}",
            "NVLink": " and ".join(links) or "unknown",
            "NCCL": nccl,
            "backend": f"{self.placement.backend}{', shared' * bool(self.placement.nccl)}",
            **self._sharing(),
        }

    def _sharing(self) -> dict[str, str]:
        """Return how ranks share a GPU: how many, the blocks of a kernel of NCCL, MPS.

        A rank with a GPU of its own uses the daemon of MPS that it finds.
        """
        if not self.placement.each:
            daemon = shared_gpu.foreign()
            return {"MPS": f"that of someone else, in {daemon}"} if daemon else {}
        blocks = shared_gpu.variables_of(self.placement).get("NCCL_MAX_CTAS", "")
        mps = "a daemon of its own" if self.placement.mps else "none"
        return {"ranks per GPU": str(self.placement.each), "NCCL CTAs": blocks, "MPS": mps}


@dataclass(frozen=True)
class Options:
    """The options of a session. `base` is the base of this interpreter; "" derives it from the installed packages.

    With `run_folder` the session runs its part of that run's plan; without, it creates a run. `keys` limits the plan
    to these cases, unless empty. `image` is the content digest of the image of this process, `overlays` the file with
    the overlays of its cases, `place` the name of the machine in records. `mps`: ranks share a GPU through MPS where
    the case can't end in a crash.
    """

    base: str = ""
    run_folder: Path | None = None
    select: str = ""
    deadline_s: float = DEADLINE_S
    relay: str = ""
    image: str = ""
    overlays: Path | None = None
    keys: frozenset[str] = frozenset()
    place: str = ""
    mps: bool = False

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], **options: Any) -> Options:
        """Read MEGATRIX_BASE, _RUN, _DEADLINE (seconds), _RELAY, _IMAGE, _OVERLAYS, _KEYS (JSON), _PLACE and _MPS."""
        variables = {"base": "BASE", "relay": "RELAY", "image": "IMAGE", "place": "PLACE"}
        folder, overlays = environ.get("MEGATRIX_RUN"), environ.get("MEGATRIX_OVERLAYS")
        return cls(
            **{field: environ.get(f"MEGATRIX_{name}", "") for field, name in variables.items()},
            run_folder=Path(folder) if folder else None,
            deadline_s=deadline(environ.get("MEGATRIX_DEADLINE", "")),
            overlays=Path(overlays) if overlays else None,
            keys=frozenset(json.loads(environ.get("MEGATRIX_KEYS", "[]"))),
            mps=bool(environ.get("MEGATRIX_MPS")),
            **options,
        )


class CaseContexts:
    """Makes the contexts of cases, whose logs and checkpoints are in `run_folder`."""

    def __init__(self, installation: Installation, options: Options, run_folder: Path) -> None:
        self._installation, self._options, self._run_folder = installation, options, run_folder
        self._catalog, self._environment, self._host = installation.catalog, installation.environment, installation.host
        self._configuration = host.load_configuration()
        self._overlays: dict[tuple[Source, ...], Overlay] = {}

    def of(self, planned: Planned) -> CaseContext:
        """Return the context of a case, with the GPUs that it runs on. What it lacks makes it unavailable."""
        case = self._catalog.failure(planned.failure).case_named(planned.case) if planned.reproducible else None
        overlays, writer_overlays, lack = self._laid_out(planned)
        placement, libraries, lack = self._placed(case, planned) if case and not lack else (WITHOUT_GPU, (), lack)
        try:
            content = self._content(planned, (*overlays, *writer_overlays), placement)
            # Cases whose writer is the same share its checkpoint.
            checkpoint = self._content(planned.writer, writer_overlays, placement)[:20] if planned.writer else ""
        except MatrixError as error:
            content, checkpoint, lack = "", "", lack or error.brief
        resolved = Resolved(self._environment, self._host, placement, self._options.image)
        return CaseContext(
            path=tuple(str(overlay.path) for overlay in overlays),
            log_dir=self._run_folder / "logs" / planned.key.replace("/", "_").replace(" ", "/"),
            deadline_s=self._options.deadline_s,
            resolved=resolved.packages(overlays) | self._host.facts(planned.level),
            content=content,
            notes=(*self._notes(case, planned, overlays), *resolved.notes(self._catalog, planned)),
            reproduce=reproduce_line(planned, os.environ),
            run=self._run_folder.name,
            unavailable=lack,
            writer_path=tuple(str(overlay.path) for overlay in writer_overlays),
            checkpoint=self._run_folder / "checkpoints" / checkpoint if checkpoint else Path(),
            clones=self._configuration.sources,
            placement=placement,
            libraries=libraries,
        )

    def _placed(self, case: Case, planned: Planned) -> tuple[Placement, tuple[str, ...], str]:
        """Return the GPUs of a case, what its ranks load before torch, and what it lacks or "".

        Where the wheel of NCCL can't be had, ranks share a GPU over gloo, if that does for the case.
        """
        machine, problem = self._host.offers(planned.level), ""
        for offer in (self._offer, replace(self._offer, toolkit=None, lays=None)):
            placement = place(case, planned, machine, offer)
            if isinstance(placement, Lack):
                return WITHOUT_GPU, (), problem or str(placement)
            try:
                libraries = self._libraries(placement, planned)
            except MatrixError as error:
                problem = problem or error.brief
            else:
                requested = self._options.mps and bool(placement.nccl)
                mps = requested and not shared_gpu.may_crash(
                    self._catalog.failure(planned.failure), planned.expectation
                )
                remarks = (
                    placement.note,
                    "through MPS" * mps,
                    "without MPS: it may end in a crash, which ends the other ranks" * (requested and not mps),
                    f"the daemon of MPS in {shared_gpu.foreign()}, which someone else runs, is not used"
                    * bool(placement.each and shared_gpu.foreign()),
                    problem,
                )
                return replace(placement, note="; ".join(filter(None, remarks)), mps=mps), libraries, ""
        return WITHOUT_GPU, (), problem

    def _laid_out(self, planned: Planned) -> tuple[tuple[Overlay, ...], tuple[Overlay, ...], str]:
        """Return the overlays of a case, those of its writer, and what the case lacks or "".

        What needs no overlay is checked before the overlays are made.
        """
        if lack := self.lack(planned):
            return (), (), lack
        try:
            overlays = self._overlays_of(planned)
            writer_overlays = self._overlays_of(planned.writer) if planned.writer else ()
        except MatrixError as error:
            return (), (), error.brief + self._installation.better_python
        return overlays, writer_overlays, self.lack(planned, overlays)

    def lack(self, planned: Planned, overlays: Sequence[Overlay] | None = None) -> str:
        """Return what a case requires and this interpreter, its overlays or the machine do not offer, "" if nothing."""
        offer = self._offer
        if overlays is not None:
            better = self._installation.better_python
            no_helper = next((overlay.no_helper + better for overlay in overlays if overlay.no_helper), "")
            has_mpirun = mpirun.find([str(overlay.path) for overlay in overlays]) is not None
            offer = replace(offer, mpirun=has_mpirun, no_helper=no_helper)
        return str(self._host.lack(self._catalog, planned, offer) or "")

    @cached_property
    def _offer(self) -> BaseOffer:
        """Return what this interpreter offers. One whose overlays were made elsewhere gets no further ones."""
        offer = offered(self._catalog, self._installation.base, self._environment)
        return replace(offer, toolkit=None) if self._options.overlays else offer

    def _libraries(self, placement: Placement, planned: Planned) -> tuple[str, ...]:
        """Return what ranks load before torch: to share a GPU; for some releases of Transformer Engine, cuDNN's parts.

        Raises MatrixError where it can't be made.
        """
        wheel = placement.nccl.wheel if placement.nccl else ""
        libraries = [overlay.path / NCCL for overlay in self._preloaded(wheel)] if wheel else []
        if placement.peers:
            libraries.append(shared_gpu.peer_access(default_root()))
        return tuple(map(str, [*libraries, *(provision.cudnn_parts(planned) if placement.gpus else ())]))

    def _preloaded(self, wheel: str) -> tuple[Overlay, ...]:
        if self._options.overlays:
            return self._provided(wheel)
        return tuple(map(Overlays(default_root()).provide, provision.preloaded_specs(wheel, self._environment)))

    def builds_of(self, planned: Planned) -> tuple[OverlaySpec, ...]:
        """Return the overlays of a case and its writer for which Transformer Engine is built; () if one can't be."""
        if planned.level is Level.GPU and not self._options.overlays and not self.lack(planned):
            with contextlib.suppress(MatrixError):  # the case reports it
                specs = chain(*(self._specs(side) for side in (planned, planned.writer) if side))
                return tuple(spec for spec in specs if spec.build and not spec.build.wheel)
        return ()

    def _specs(self, planned: Planned) -> tuple[OverlaySpec, ...]:
        sms = {gpu.sm for gpu in self._host.offers(planned.level).gpus or () if gpu.sm}
        return provision.overlay_specs(planned, self._environment, self._configuration, sms)

    def _overlays_of(self, planned: Planned) -> tuple[Overlay, ...]:
        """Return the overlays of a case; in an image, those listed in the file of overlays."""
        if self._options.overlays is None:
            specs = self._specs(planned)
            for spec in specs:
                if spec.sources not in self._overlays:
                    self._overlays[spec.sources] = Overlays(default_root()).provide(spec)
            return tuple(self._overlays[spec.sources] for spec in specs)
        return self._provided(planned.key)

    def _provided(self, key: str) -> tuple[Overlay, ...]:
        """Return the overlays of the file for a case or a wheel. Raises MatrixError where it has none."""
        provided = self._provisions.get(key, Provision(reason="no overlays were provided for this case"))
        if provided.reason:
            raise MatrixError(provided.reason)
        return provided.overlays

    @cached_property
    def _provisions(self) -> dict[str, Provision]:
        return provision.read(self._options.overlays) if self._options.overlays else {}

    def _content(self, planned: Planned, overlays: Sequence[Overlay], placement: Placement) -> str:
        """Return the cache key of a case, or of the writer of a checkpoint."""
        failure, digests = self._catalog.failure(planned.failure), [overlay.digest for overlay in overlays]
        return case_key(planned, failure, self._environment, digests, self._host, self._options.image, placement)

    def _notes(self, case: Case | None, planned: Planned, overlays: Sequence[Overlay]) -> list[str]:
        engine = self._environment.packages.get("transformer-engine", "")
        covered = f"Transformer Engine {engine} of this base is hidden from the ranks: it is not part of the cell"
        covers = engine and case and hidden(case, planned)
        ran = f"ran on {self._options.place}" * bool(self._options.place)
        helpers = (overlay.no_helper for overlay in overlays)
        return list(filter(None, (*helpers, self._installation.python_note, ran, covered * bool(covers))))
