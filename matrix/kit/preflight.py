"""Preflights: they predict, before a job starts, whether a failure will appear on a machine.

The folder of a failure may contain preflight.py with one PREFLIGHT. `megatrix check` examines a job with it where the
job may reach the failure, on this machine or on one that options describe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from matrix.kit.launch import UNKNOWN, World
from matrix.kit.options import Option


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

    `te` and `mcore` are sources for matrix.contract.reading (a recorded version, a wheel, a folder, PATH@REV), "" where
    the job has none. `torch_mpi`: PyTorch has its mpi backend. `te_mpi`: Transformer Engine was built with MPI.
    `environ` holds the preflights' variables, `arguments` their options.
    """

    te: str = ""
    mcore: str = ""
    torch_mpi: bool | None = None
    te_mpi: bool | None = None
    world: World = UNKNOWN
    environ: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Machine:
    """One host, with the weakest of its GPUs. None is unknown.

    `driver` is the kernel's ("470.161.03"), `cuda` the version that the user-mode driver supports ("12.4"), `sm` the
    compute capability ("9.0"), `multicast` the device attribute; `memory` and `shm` (/dev/shm) are in bytes.
    """

    driver: str | None = None
    cuda: str | None = None
    sm: str | None = None
    multicast: bool | None = None
    memory: int | None = None
    shm: int | None = None


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
    """The API contracts between releases (matrix.contract.calling). Each raises MatrixError for an unknown release."""

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
    """The result of a preflight on `subject`. `judged` is False where too little is known of the job.

    `changes` are the smallest sets of changes after which the job starts. `clears`: the failure of the preflight does
    not occur, whatever the catalog's rules expect of the versions; `open` is what it depends on besides. `text` are
    lines of figures for a terminal, `data` the same as plain JSON values.
    """

    subject: str
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


def unjudged(subject: str, reason: str) -> Report:
    """Return the report on a job of which too little is known."""
    return Report(subject, (Answer(f"{subject} can be judged", Status.UNKNOWN, reason),), judged=False)


@dataclass(frozen=True)
class Preflight:
    """The value of PREFLIGHT in a preflight.py.

    `subject` is a short name of the judged feature. `options` are the user's options; `given` returns the texts of
    those that a command states, from the values of its arguments ("seq-length" -> "4096") and its number of processes
    per host, None if unknown. `variables` are the environment variables that are read: no others are kept, since an
    environment holds secrets.
    """

    subject: str
    examine: Callable[[TrainingJob, Machine, Contracts], Report]
    options: tuple[Option, ...] = ()
    given: Callable[[Mapping[str, str], int | None], Mapping[str, str]] = lambda values, per_host: {}
    variables: tuple[str, ...] = ()
