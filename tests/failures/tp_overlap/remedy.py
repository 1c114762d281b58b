"""Changes after which a job starts: found by examining it again with each change and combination of changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from matrix.kit.launch import Launcher, World
from matrix.kit.preflight import TrainingJob, newer

from .multicast import VARIABLE
from .overlap import BOOTSTRAP

MOST_CHANGES: Final = 4  # at a time; an old stack with bootstrap over mpi, without MPI and multicast, needs four
ANY_SIZE: Final = 2  # used for an unknown world size: all sizes above 1 behave the same
BACKENDS: Final = ("nccl", "gloo")  # Megatron-LM's own default first


@dataclass(frozen=True)
class Remedy:
    """One change: its text, and the new value of one field of the job."""

    text: str
    field: str
    value: Any


def remedies(
    job: TrainingJob, starts: Callable[[TrainingJob], bool], released: Callable[[str], Sequence[str]]
) -> tuple[tuple[str, ...], ...]:
    """Return the smallest sets of changes after which the job starts, smaller sets first.

    `released` returns the available versions of a package, oldest first; the nearest newer one that helps is chosen.
    """
    axes = [axis for axis in _axes(job, released) if axis]
    found: dict[frozenset[str], tuple[str, ...]] = {}
    for count in range(1, MOST_CHANGES + 1):
        for chosen in itertools.combinations(axes, count):
            fields = frozenset(axis[0].field for axis in chosen)
            if any(smaller <= fields for smaller in found):
                continue
            for changes in itertools.product(*chosen):
                if starts(replace(job, **{change.field: change.value for change in changes})):
                    found[fields] = tuple(change.text for change in changes)
                    break
    return tuple(found.values())


def _axes(job: TrainingJob, released: Callable[[str], Sequence[str]]) -> list[list[Remedy]]:
    """Return the possible changes, one list per field, the nearest change first."""
    size = job.world.size or ANY_SIZE
    mpirun = Remedy("start it with mpirun", "world", World(Launcher.MPIRUN, size, size))
    option = "--tp-comm-bootstrap-backend {}" if job.mcore else 'bootstrap_backend="{}"'
    torch = Remedy("a PyTorch that has its mpi backend, as in NGC's images", "torch_mpi", True)
    build = Remedy("a Transformer Engine built without NVTE_UB_WITH_MPI", "te_mpi", False)
    return [
        [] if job.world.launcher is Launcher.MPIRUN else [mpirun],
        [Remedy(option.format(one), "arguments", {**job.arguments, BOOTSTRAP: one}) for one in BACKENDS],
        [Remedy(f"set {VARIABLE}=1", "environ", {**job.environ, VARIABLE: "1"})],
        [Remedy(f"megatron-core {one}", "mcore", one) for one in newer(job.mcore, released("megatron-core"))],
        [Remedy(f"Transformer Engine {one}", "te", one) for one in newer(job.te, released("transformer-engine"))],
        [torch] if job.torch_mpi is False else [],
        [build] if job.te_mpi else [],
    ]
