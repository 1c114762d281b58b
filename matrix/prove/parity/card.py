"""The card of this machine as a device of parity: the host's own Python and packages, and ranks that share one GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from matrix.ground.cases.machine_requirements import BaseFeature, Placement, offered, place_on_one
from matrix.ground.catalog.failure import Expectation, Level
from matrix.ground.catalog.folders import default_root
from matrix.ground.catalog.stack import MCORE, TE
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.planned import Lack, Planned
from matrix.kit.parity.factors import CARD, MOST_RANKS
from matrix.kit.rank import LackError
from matrix.prove.execution import gpus
from matrix.prove.execution.case_context import NCCL
from matrix.prove.execution.installation import AXES, Installation
from matrix.prove.execution.ranks import shared_gpu
from matrix.prove.execution.ranks.forkserver_child import SINGLE
from matrix.prove.execution.ranks.variables import of_device
from matrix.prove.planning.packing import Demand
from matrix.prove.provision import case_overlays, host
from matrix.prove.provision.overlays import Overlay, Overlays
from matrix.read.machine import installed


def own(package: str) -> str:
    """Return the release of a package that this environment has, of Transformer Engine a compiled one; else ""."""
    environment = installed.current()
    usable = package != TE or BaseFeature.COMPILED_TE.value in (environment.features or ())
    return environment.packages.get(package, "") if usable else ""


@dataclass(frozen=True)
class SharedCard:
    """This environment with what is laid over it, and how ranks share a GPU; `libraries` are loaded before torch."""

    installation: Installation
    overlays: tuple[Overlay, ...]
    placement: Placement
    libraries: tuple[str, ...]

    @classmethod
    def of(cls, versions: Mapping[str, str], sources: Mapping[str, str], *, mps: bool) -> SharedCard:
        """Return that of releases of megatron-core and Transformer Engine, by package; `sources` are not of an index.

        Raises MatrixError where ranks can't share a GPU here, or a package can't be laid there.
        """
        here, made = Installation.current(""), Overlays(default_root())
        machine = here.host.offers(Level.GPU)
        placement = place_on_one(MOST_RANKS, machine, offered(here.catalog, here.base, here.environment))
        if isinstance(placement, Lack):
            raise MatrixError(f"no card for parity: {placement.text}")
        cell = here.catalog.cell(here.base, versions, python=here.environment.minor)
        planned = Planned(cell, "parity", "card", Level.GPU, Expectation.UNKNOWN, compiled=TE in sources)
        planned = replace(planned, source=sources.get(MCORE, ""), te_source=sources.get(TE, ""))
        sms = {gpu.sm for gpu in machine.gpus or () if gpu.sm}
        specs = case_overlays.overlay_specs(planned, here.environment, host.load_configuration(), sms)
        wheel = placement.nccl.wheel if placement.nccl else ""
        preloaded = case_overlays.preloaded_specs(wheel, here.environment) if wheel else ()
        libraries = tuple(str(made.provide(spec).path / NCCL) for spec in preloaded)
        return cls(here, tuple(map(made.provide, specs)), replace(placement, mps=mps), libraries)

    @property
    def identity(self) -> str:
        """What a comparison depends on besides its point."""
        packages = self.installation.environment.packages
        base = [f"{name} {packages[name]}" for name in AXES if name in packages]
        laid, machine = [overlay.digest for overlay in self.overlays], self.installation.host.text
        return "; ".join([*base, *laid, str(self.placement), machine])

    @contextmanager
    def held(self, say: Callable[[str], None]) -> Iterator[dict[str, str]]:
        """Hold a GPU, and yield the variables of processes that use it. Raises MatrixError where it can't be had."""
        pool = gpus.pool_of(self.installation.host, say)
        searched = [*(str(overlay.path) for overlay in self.overlays), os.environ.get("PYTHONPATH", "")]
        loaded = [*self.libraries, os.environ.get("LD_PRELOAD", "")]
        lists = {"PYTHONPATH": os.pathsep.join(filter(None, searched)), "LD_PRELOAD": " ".join(filter(None, loaded))}
        try:
            with shared_gpu.admitted(partial(pool.admit, Demand(1)), self.placement, gpus.locks()) as granted:
                yield {**of_device(CARD, SINGLE), **lists, **granted}
        except LackError as lack:
            raise MatrixError(f"no card for parity: {lack}") from None
