"""The outcome of a reproduction: facts only; judge.py derives the verdict from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from matrix.ground.verdicts.planned import Lack

# What Python appends to an exception's last line: `Did you mean: 'x'?` since 3.10 to attributes and names, `Did you
# forget to import 'x'?` since 3.12 to names of modules, `Did you mean 'x'?` since 3.13 to keyword arguments.
_SUGGESTION: Final = re.compile(
    r"\. Did you (?:mean:? '[^'\n]*'(?: instead of '[^'\n]*')?|forget to import '[^'\n]*')\?"
    r"(?: Or did you forget to import '[^'\n]*'\?)?$",
    re.MULTILINE,
)


class OutcomeKind(str, Enum):
    """How a run ended."""

    PASSED = "passed"
    RAISED = "raised"  # a Python exception left the body of a rank
    SIGNALED = "signaled"  # a rank died by a signal that the supervisor did not send
    EXITED = "exited"  # a rank left with a non-zero status, or before its body returned
    HUNG = "hung"  # the deadline passed
    OUT_OF_MEMORY = "out-of-memory"
    NOT_REACHED = "not-reached"  # planned, never started (or started and lost)
    UNAVAILABLE = "unavailable"  # a requirement is missing; `reason` names it


SECONDS, MEMORY, GPU_MEMORY = "seconds", "memory", "gpu-memory"  # what a rank used: s; MiB, its peak, that on its GPU
EVIDENCE: Final = 65_536  # bytes of the end of a rank's log that an outcome carries


@dataclass(frozen=True)
class Frame:
    """One frame of a stack: `file` is the path as the interpreter reports it, `line` is 1-based (0 = unknown)."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class Raised:
    """One exception of a chain. `type` is the class name without its module; frames run outermost first."""

    type: str
    message: str
    frames: tuple[Frame, ...] = ()

    @property
    def compared(self) -> str:
        """Return the message without Python's suggestions, which older releases do not print: what signatures match."""
        return _SUGGESTION.sub("", self.message) if "id you " in self.message else self.message


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended.

    `exit_code` is multiprocessing's: None = never ended by itself, negative = minus the signal number.
    `chain` holds the exceptions that left the body, root cause first. `stopped` = the supervisor ended it.
    `seconds` counts from the start of the job to the end of this rank, or to its exception. `used` has the
    SECONDS, MEMORY and GPU_MEMORY of a body that returned, with what it imported: the peak of the resident set, and of
    what torch allocated.
    """

    rank: int
    exit_code: int | None
    chain: tuple[Raised, ...] = ()
    returned: bool = False
    stopped: bool = False
    seconds: float = 0.0
    value: Any = None  # what the body returned, JSON
    log: str = ""  # path of this rank's log
    stacks: str = ""  # stacks taken at the deadline, "" if none
    used: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run, as it is sent between processes and stored.

    `rank` is the rank that the outcome is blamed on, never a peer that failed because of it.
    `evidence` is the end of that rank's log (at most 64 KiB), for signatures of native crashes. `resolved` is what the
    ranks showed of their machine, such as the transport between them.
    """

    kind: OutcomeKind
    reason: str = ""
    rank: int | None = None
    signal: str | None = None  # "SIGSEGV"
    exit_code: int | None = None
    chain: tuple[Raised, ...] = ()
    evidence: str = ""
    seconds: float = 0.0
    ranks: tuple[RankEnd, ...] = ()
    leftovers: int = 0  # processes of the job that outlived their rank and were killed
    attempts: tuple[str, ...] = ()  # descriptions of earlier attempts of this job: a retry is evidence
    lacks: tuple[Lack, ...] = ()  # all that an unavailable case lacks, as far as that is known before it runs
    resolved: Mapping[str, str] = field(default_factory=dict)
