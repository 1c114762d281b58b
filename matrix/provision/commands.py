"""Run a tool (git, uv, a Python) and return what it printed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

NOT_STARTED = 127  # what a shell says of a command that is not there
TIMED_OUT = 124  # what timeout(1) says


@dataclass(frozen=True)
class CommandResult:
    """How a command ended: its exit status and what it wrote, undecodable bytes replaced."""

    code: int
    out: str = ""
    err: str = ""

    @property
    def complaint(self) -> str:
        """Return the last lines that it wrote (at most 12), without credentials, for an error message."""
        lines = (self.err.strip() or self.out.strip()).splitlines()
        return redacted("\n".join(lines[-12:])) or f"exit status {self.code}, nothing written"


class Runner(Protocol):
    """Runs a command to its end. `environment` replaces the inherited one; `seconds` is a deadline."""

    def __call__(
        self, command: Sequence[str], *, environment: Mapping[str, str] | None = None, seconds: float | None = None
    ) -> CommandResult:
        """Return the answer; never raise for a command that fails, is missing or is late."""
        ...


def run(
    command: Sequence[str], *, environment: Mapping[str, str] | None = None, seconds: float | None = None
) -> CommandResult:
    """Run a real process, stdin closed. A missing tool answers 127 and a late one 124, as in a shell."""
    try:
        done = subprocess.run(
            list(command),
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return CommandResult(TIMED_OUT, err=f"no answer within {seconds} s")
    except OSError as error:
        return CommandResult(NOT_STARTED, err=str(error))
    return CommandResult(done.returncode, done.stdout, done.stderr)


def redacted(text: str) -> str:
    """Return `text` with the user and password of every URL taken out: index URLs carry tokens."""
    return re.sub(r"(?<=://)[^/\s]*@", "***@", text)
