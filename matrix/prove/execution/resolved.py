"""What a case runs with, for its record: versions, the machine, drivers and GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from matrix.ground.cases.driver_fit import driver_note, user_mode_driver
from matrix.ground.cases.machine_requirements import Placement
from matrix.ground.catalog.machine import Cuda, Nvml, PythonEnvironment
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.versions import NONE
from matrix.ground.verdicts.planned import Planned
from matrix.prove.provision.host import LocalSite
from matrix.prove.provision.overlays import Overlay
from matrix.read.machine.nvidia import devices


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
        versions["python"] = self.environment.python or "unknown"
        if self.image:
            versions["image"] = self.image
        driver = self.host.machine.driver
        versions["host"] = self.host.machine.architecture
        if driver and driver != NONE:
            versions["host driver"] = driver
        if (cuda := self.cuda) is None:
            return versions
        if user := user_mode_driver(cuda, driver, inside=bool(self.image)):
            versions["user-mode driver"] = user
        return versions | self._devices(cuda)

    def notes(self, catalog: Catalog, planned: Planned) -> list[str]:
        """Return the notes on the GPUs and the driver."""
        driver = driver_note(catalog, planned, self.host.machine.driver, self.cuda)
        return list(filter(None, (self.placement.note, driver)))

    def _devices(self, cuda: Cuda) -> dict[str, str]:
        """Return how many GPUs are held, their model, SM and NVLinks, NCCL, the backend."""
        kinds = dict.fromkeys(f"{gpu.name}, SM {gpu.sm}" for gpu in cuda.gpus)
        cards = (devices.management() or Nvml()).gpus
        links = dict.fromkeys(f"{card.up} of {card.links} links up" if card.links else "none" for card in cards)
        packages = self.environment.packages.items()
        versions = [version for name, version in packages if name.startswith("nvidia-nccl-cu")]
        nccl = next(iter(versions), os.environ.get("NCCL_VERSION", ""))
        return {
            "GPUs": f"{self.placement.gpus} of {len(cuda.gpus)} x {' and '.join(kinds)}",
            "NVLink": " and ".join(links) or "unknown",
            **({"NCCL": nccl} if nccl else {}),
            "backend": self.placement.backend,
        }
