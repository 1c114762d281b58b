"""What the nodes of a cluster offer, and what a case requests of them."""

from __future__ import annotations

from functools import cache
from typing import Any

from matrix.ground.cases import machine_requirements
from matrix.ground.cases.machine_requirements import BaseOffer, unmet
from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.machine import Machine
from matrix.ground.catalog.model import Catalog
from matrix.ground.verdicts.planned import Kind, Lack, Planned
from matrix.prove.execution.slurm.array_spec import ResourceRequest, needs
from matrix.prove.execution.slurm.client import Commands, Node
from matrix.prove.provision.host import LocalSite


class ClusterSite:
    """The nodes that Slurm lists; `host` is the submitting machine. The same architecture is assumed for all."""

    def __init__(self, catalog: Catalog, host: LocalSite, commands: Commands) -> None:
        self.catalog, self.commands, self._host = catalog, commands, host
        self.nodes = commands.nodes()
        cpus, memory = (max((getattr(node, name) for node in self.nodes), default=1) for name in ("cpus", "memory"))
        self._largest = Node("", (), "", cpus, "", memory)
        self._features = sorted({feature for node in self.nodes for feature in node.features})
        self._refusal = cache(lambda request: commands.option_error(request.options))

    def lack(self, catalog: Catalog, item: Planned, offer: BaseOffer) -> Lack | None:
        """Return what a case requires and its base or every node lacks, with Slurm's error message.

        The GPUs of a node are matched where the case runs.
        """
        if lack := unmet(catalog, item, offer, Machine()):
            return lack
        away = [f"{node.name} is {node.state}" for node in self.nodes if node.away]
        nodes = "; ".join((f"features of its nodes: {', '.join(self._features) or 'none'}", *away))
        if too_old := self._branches(item)[1]:
            return Lack(Kind.DRIVER, f"{too_old}; {nodes}")
        request = self.request(item)
        if not (refusal := self._refusal(request)):
            return None
        options = " ".join(option for option in request.options if not option.startswith("--cpus"))
        text = f"needs {options or request.options[0]}; Slurm: {refusal}; {nodes}"
        return Lack(Kind.GPUS if request.gpus else Kind.NODE, text)

    def capabilities(self, level: Level) -> dict[str, Any]:
        """Return the capabilities of the submitting machine that a verdict at `level` depends on."""
        return self._host.capabilities(level)

    def request(self, item: Planned) -> ResourceRequest:
        """Return the request of a case."""
        case = self.catalog.failure(item.failure).case_named(item.case) if item.reproducible else None
        return needs(item, case, self._largest, self._branches(item)[0])

    def _branches(self, item: Planned) -> tuple[tuple[str, ...], str]:
        """Return the driver branches for a case (empty: any), and why no node has one, or ""."""
        return machine_requirements.runnable(self.catalog, item, machine_requirements.driver_branches(self._features))
