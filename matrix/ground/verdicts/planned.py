"""One case to run, with the reasons for it, as a plan stores it and the process that runs it reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any

from matrix.ground.catalog.codec import MalformedError, fields_from_plain, fields_to_plain
from matrix.ground.catalog.failure import LAUNCHERS, Expectation, Level
from matrix.ground.catalog.stack import Cell


class ReasonKind(str, Enum):
    """The rule that puts a case into a plan."""

    STACK = "stack"  # the stack of a report
    BOUNDARY = "boundary"  # the expectation changes next to its cell
    PAIRWISE = "pairwise"  # a row of the covering array
    PICKED = "picked"  # its failure names the cell, or the catalog the image
    SOURCE = "source"  # the user gave the package under test


@dataclass(frozen=True)
class Reason:
    """A reason: a kind and a text; `str` joins both for display."""

    kind: ReasonKind
    text: str

    def __str__(self) -> str:
        return f"{'stack of ' if self.kind is ReasonKind.STACK else f'{self.kind.value}: '}{self.text}"


class Kind(str, Enum):
    """The kinds of requirements, in the order in which they are matched."""

    REPRODUCTION = "reproduction"
    BASE = "base"
    DRIVER = "driver"
    CUDA = "torch with CUDA"
    TE = "compiled Transformer Engine"
    MODULE = "module"
    CLONE = "clone"
    HELPER = "dataset helper"
    LAUNCHER = "launcher"
    UV = "uv"
    GPUS = "GPUs"
    NCCL = "NCCL"
    NCCL_START = "start of NCCL"
    SM = "SM"
    MULTICAST = "multicast"
    MEMORY = "memory"
    NODE = "node"  # of a cluster


@dataclass(frozen=True)
class Lack:
    """A requirement that is missing; `name` is that of a missing clone or base, which a person can add."""

    kind: Kind
    text: str
    name: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Planned:
    """One case to run (or to report as `unavailable`): a case of a failure, at a level, in a cell.

    `why` holds the reasons for which it is in the plan. `reproducible`: the catalog has a reproduction of it. `source`
    and `te_source` are the sources of megatron-core and Transformer Engine that are not PyPI (a wheel, a
    clone@revision, a working tree); `writer_source` is that of the writer's megatron-core. `compiled`: a clone's
    Transformer Engine is built with its extension. `packages` ("NAME==VERSION") are laid over the base too. What any of
    them requires of a package in `overrides` does not count. `seconds` is its expected time, 0 for unknown.
    """

    cell: Cell
    failure: str
    case: str
    level: Level
    expectation: Expectation
    reproducible: bool = True
    ranks: int = 1
    gpus: int = 0
    launcher: str = LAUNCHERS[0]
    packages: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    source: str = ""
    te_source: str = ""
    writer_source: str = ""
    compiled: bool = False
    seconds: float = 0.0
    why: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()

    @cached_property
    def key(self) -> str:
        """Return the case's name within a plan; the same four words select it on the command line."""
        return f"{self.cell.id} {self.failure} {self.case} {self.level.value}"

    @property
    def writer(self) -> Planned | None:
        """Return the case in the cell that writes the checkpoint it reads, None if it reads none."""
        cell = self.cell.writer
        if not cell:
            return None
        unknown = Expectation.UNKNOWN
        return replace(self, cell=cell, expectation=unknown, source=self.writer_source, te_source="", writer_source="")

    def __post_init__(self) -> None:
        """Raise ValueError for a job that can't be."""
        if self.ranks < 1 or self.gpus < 0 or self.launcher not in LAUNCHERS:
            raise ValueError(f"{self.ranks} ranks, {self.gpus} GPUs, launcher {self.launcher}")

    def to_plain(self) -> dict[str, Any]:
        """Return the key and the fields."""
        return {"key": self.key, **fields_to_plain(self)}

    @classmethod
    def from_plain(cls, value: Mapping[str, Any]) -> Planned:
        """Return the case of these fields; next to them are its key, and in a plan the command line that runs it again.

        Raises MalformedError, also for the key of another case.
        """
        planned = fields_from_plain(cls, value, "key", "reproduce")
        if (key := value.get("key", planned.key)) != planned.key:
            raise MalformedError("a case whose key is not its own", where="key", got=key, expected=planned.key)
        return planned
