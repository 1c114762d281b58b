"""Reasons for which a case is in a plan, and for which it can't run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


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
    GPUS = "GPUs"
    NCCL = "NCCL"
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
