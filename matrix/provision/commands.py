"""Run a tool (git, uv, a Python) and return what it printed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

NOT_STARTED = 127  # exit status of a shell for a missing command
TIMED_OUT = 124  # exit status of timeout(1)


@dataclass(frozen=True)
class CommandResult:
    """The exit status and the output of a command, undecodable bytes replaced."""

    code: int
    out: str = ""
    err: str = ""

    @property
    def complaint(self) -> str:
        """Return the last lines of its output (at most 12), without credentials, for an error message."""
        lines = (self.err.strip() or self.out.strip()).splitlines()
        return redacted("\n".join(lines[-12:])) or f"exit status {self.code}, nothing written"


class Runner(Protocol):
    """Runs a command until it ends. `environment` replaces the inherited one; `seconds` is a timeout."""

    def __call__(
        self, command: Sequence[str], *, environment: Mapping[str, str] | None = None, seconds: float | None = None
    ) -> CommandResult:
        """Return the result; never raise for a command that fails, is missing or times out."""
        ...


def run(
    command: Sequence[str], *, environment: Mapping[str, str] | None = None, seconds: float | None = None
) -> CommandResult:
    """Run a process with empty standard input. The code is 127 for a missing tool and 124 on timeout, as in a shell."""
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
        return CommandResult(TIMED_OUT, err=f"no result within {seconds} s")
    except OSError as error:
        return CommandResult(NOT_STARTED, err=str(error))
    return CommandResult(done.returncode, done.stdout, done.stderr)


def redacted(text: str) -> str:
    """Return `text` without the user and password of any URL: index URLs contain tokens."""
    return re.sub(r"(?<=://)[^/\s]*@", "***@", text)
