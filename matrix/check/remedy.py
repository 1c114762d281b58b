"""What to change so that a job starts: found by asking again, with each change and their combinations."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from matrix.catalog.versions import is_version, parse
from matrix.check.launch import Launcher, environment_of, world_of
from matrix.check.overlap import Setting

MOST_CHANGES: Final = 4  # at a time; an old stack told to bootstrap by mpi, without MPI and multicast, needs four
ANY_SIZE: Final = 2  # a world size that is not known: any but 1 behaves the same
BACKENDS: Final = ("nccl", "gloo")  # Megatron-LM's own default first


@dataclass(frozen=True)
class Change:
    """One thing to change, in words, and the field of the setting that it changes."""

    text: str
    field: str
    value: Any


def remedies(
    setting: Setting, starts: Callable[[Setting], bool], releases: Mapping[str, Sequence[str]]
) -> tuple[tuple[str, ...], ...]:
    """Return the smallest sets of changes after which the job starts, smaller sets first.

    `releases` are the versions that may be taken, by "mcore" and "te", oldest first; the nearest newer that helps is
    named.
    """
    axes = [axis for axis in _axes(setting, releases) if axis]
    found: dict[frozenset[str], tuple[str, ...]] = {}
    for count in range(1, MOST_CHANGES + 1):
        for chosen in itertools.combinations(axes, count):
            fields = frozenset(axis[0].field for axis in chosen)
            if any(smaller <= fields for smaller in found):
                continue
            for changes in itertools.product(*chosen):
                if starts(replace(setting, **{change.field: change.value for change in changes})):
                    found[fields] = tuple(change.text for change in changes)
                    break
    return tuple(found.values())


def _axes(setting: Setting, releases: Mapping[str, Sequence[str]]) -> list[list[Change]]:
    """Return what may be changed, one list for each field, the nearest change first."""
    world = world_of(setting.environ)
    mpirun = Change("start it with mpirun", "environ", environment_of(Launcher.MPIRUN, world.size or ANY_SIZE))
    said = "--tp-comm-bootstrap-backend {}" if setting.mcore else 'bootstrap_backend="{}"'
    torch = Change("a PyTorch that has its mpi backend, as in NGC's images", "torch_mpi", True)
    build = Change("a Transformer Engine built without NVTE_UB_WITH_MPI", "built_with_mpi", False)
    return [
        [] if world.launcher is Launcher.MPIRUN else [mpirun],
        [Change(said.format(backend), "bootstrap", backend) for backend in BACKENDS],
        [Change("set UB_SKIPMC=1", "skipmc", "1")],
        [Change(f"megatron-core {one}", "mcore", one) for one in _newer(setting.mcore, releases["mcore"])],
        [Change(f"Transformer Engine {one}", "te", one) for one in _newer(setting.te, releases["te"])],
        [torch] if setting.torch_mpi is False else [],
        [build] if setting.built_with_mpi else [],
    ]


def _newer(version: str | None, releases: Sequence[str]) -> list[str]:
    if version is None or not is_version(version):
        return []
    return [one for one in releases if parse(one) > parse(version)]
