"""Preflights: they predict, before a job starts, whether a failure will appear on a machine.

The folder of a failure may contain preflight.py with a function `examine(job, machine, contracts)` that returns a
Report; [preflight] in its failure.toml declares its options. `megatrix check` examines a job with it where the job may
reach the failure, on this machine or on one that options describe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, cast

from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.folders import load_module
from matrix.ground.catalog.machine import Cuda, Gpu, Machine
from matrix.ground.catalog.schema import read_toml
from matrix.ground.catalog.versions import Range, is_version, parse
from matrix.ground.errors import MatrixError
from matrix.kit.launch import UNKNOWN, World

__all__ = ["Answer", "Call", "Contracts", "Cuda", "Error", "Examine", "Gpu", "Machine", "Range", "Report", "Status"]
__all__ += ["TrainingJob", "newer", "preflight_of", "read_facts", "status_of", "unjudged"]
FILE: Final = "preflight.py"
T = TypeVar("T")


class Status(str, Enum):
    """The status of an answer. A fact without evidence is unknown, never guessed."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


def status_of(truth: bool | None) -> Status:
    """Return the status for a truth value; None is unknown."""
    return Status.UNKNOWN if truth is None else Status.YES if truth else Status.NO


@dataclass(frozen=True)
class Error:
    """The error with which a job will end, in the form of the catalog's signatures.

    `type` is the name of the exception, "" where it differs by release. `effect` is the visible effect where that is
    not the exception itself (a crash, a log line).
    """

    type: str
    message: str
    effect: str = ""

    def __str__(self) -> str:
        return self.effect or (f"{self.type}: {self.message}" if self.type else self.message)


@dataclass(frozen=True)
class Answer:
    """The answer to one question.

    `error` is the error with which the job will end for that reason. `warns` is a warning about something that does not
    end the job. `failure` is the id of the catalog entry whose signature `error` matches; a preflight leaves it empty.
    """

    question: str
    status: Status
    reason: str
    error: Error | None = None
    warns: str = ""
    failure: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "question": self.question,
            "word": self.status.value,
            "reason": self.reason,
            "breaks": str(self.error or ""),
            "failure": self.failure,
            "warns": self.warns,
        }


@dataclass(frozen=True)
class TrainingJob:
    """The job that a user starts. None is unknown.

    `te` and `mcore` are sources for matrix.read.api.sides (a recorded version, a wheel, a folder, PATH@REV), "" where
    the job has none. `torch_mpi`: PyTorch has its mpi backend. `te_mpi`: Transformer Engine was built with MPI.
    `environ` holds the preflights' variables, `arguments` their options. `command` are the values of the arguments of
    its command ("seq-length" -> "4096", a flag -> ""), `per_host` is its number of processes per host.
    """

    te: str = ""
    mcore: str = ""
    torch_mpi: bool | None = None
    te_mpi: bool | None = None
    world: World = UNKNOWN
    environ: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    command: Mapping[str, str] = field(default_factory=dict)
    per_host: int | None = None


@dataclass(frozen=True)
class Call:
    """The call of a Transformer Engine function in a Megatron-LM.

    `site` is its line, "" where it is not reached; `keywords` are the keywords passed. `error` is what Python raises
    there, or earlier in the same function.
    """

    site: str = ""
    keywords: frozenset[str] = frozenset()
    error: Error | None = None


class Contracts(Protocol):
    """The API contracts between releases (matrix.kit.contracts). Each raises MatrixError for an unknown release."""

    def version(self, te: str) -> str:
        """Return the version of the Transformer Engine that `te` names."""

    def takes(self, te: str, path: str, parameter: str) -> bool | None:
        """Return whether the callable at `path` ("module:name") has a parameter; None where that is unknown."""

    def call(self, mcore: str, te: str, function: str) -> Call:
        """Return the call in `mcore` of a function of `te`, which is given by name without module."""

    def released(self, package: str) -> Sequence[str]:
        """Return the recorded releases of megatron-core or transformer-engine, oldest first."""


@dataclass(frozen=True)
class Report:
    """The result of a preflight. `judged` is False where too little is known of the job.

    `changes` are the smallest sets of changes after which the job starts. `clears`: the failure of the preflight does
    not occur, whatever the catalog's rules expect of the versions; `open` is what it depends on besides. `text` are
    lines of figures for a terminal, `data` the same as plain JSON values.
    """

    answers: tuple[Answer, ...]
    changes: tuple[tuple[str, ...], ...] = ()
    judged: bool = True
    clears: bool = False
    open: str = ""
    text: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fails(self) -> bool:
        """Return whether the job will fail."""
        return any(answer.error for answer in self.answers)


Examine = Callable[[TrainingJob, Machine, Contracts], Report]


def unjudged(reason: str) -> Report:
    """Return the report on a job of which too little is known."""
    return Report((Answer("the job can be judged", Status.UNKNOWN, reason),), judged=False)


def preflight_of(folder: Path) -> Examine:
    """Return the preflight of a failure's folder. Raises MatrixError, and whatever the module raises."""
    examine = getattr(load_module(folder, "preflight"), "examine", None)
    if not callable(examine):
        expected = "def examine(job, machine, contracts) -> Report"
        raise MatrixError("no preflight in this module", where=str(folder / FILE), got=examine, expected=expected)
    return cast(Examine, examine)


def read_facts(kind: type[T], path: Path) -> T:
    """Return the facts of a failure in a TOML file next to its code, as the dataclass `kind`. Raises MatrixError."""
    return decode(kind, read_toml(path), str(path))


def newer(version: str, releases: Sequence[str]) -> list[str]:
    """Return the releases after `version`; [] where it is not a version (a folder)."""
    return [release for release in releases if parse(release) > parse(version)] if is_version(version) else []
