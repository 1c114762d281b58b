"""Run a tool (git, uv, a Python) and return what it printed."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from matrix.read.kernel import die_with_parent

NOT_STARTED = 127  # exit status of a shell for a missing command
STOP_S: Final = 4.0  # s for an interrupted command to undo what it did, such as debootstrap's mounts
TIMED_OUT = 124  # exit status of timeout(1)
MOST: Final = 64 * 2**20  # bytes of a stream; the history of 10,000 commits has 2 MB
BLOCK: Final = 2**16  # bytes, of a pipe
# `python -c` searches the current folder for modules first. That folder may be anyone's, so it is left out; Python 3.10
# has no option for this (-P is of 3.11).
_ISOLATED: Final = "import sys; sys.path[:1] == [''] and sys.path.pop(0)"
_STATES_ERROR: Final = re.compile(r"\s*(error|fatal)\b", re.I)


@dataclass(frozen=True)
class CommandResult:
    """The exit status and the output of a command, undecodable bytes replaced."""

    code: int
    out: str = ""
    err: str = ""

    @property
    def complaint(self) -> str:
        """Return the last lines of its output (at most 12), without credentials, for an error message.

        They begin with the first that states an error: uv prints what it has downloaded before that.
        """
        lines = (self.err.strip() or self.out.strip()).splitlines()[-12:]
        start = next((index for index, line in enumerate(lines) if _STATES_ERROR.match(line)), 0)
        return redacted("\n".join(lines[start:])) or f"exit status {self.code}, nothing written"


class Runner(Protocol):
    """Runs a command until it ends. `environment` replaces the inherited one; `seconds` is a timeout."""

    def __call__(
        self, command: Sequence[str], *, environment: Mapping[str, str] | None = None, seconds: float | None = None
    ) -> CommandResult:
        """Return the result; never raise for a command that fails, is missing or times out."""
        ...


def python_code(python: str | Path, code: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
    """Return the command line of a Python that runs `code`, and that does not import modules of the current folder.

    This project starts each of its Pythons by this function or `python_module`. PYTHONPATH counts.
    """
    # Before the code runs, 3.13 and later import a module that they would search there.
    minor = re.search(r"python3\.(\d+)$", os.path.realpath(python))
    safe = ["-P"] if minor and int(minor[1]) >= 13 else []
    return [str(python), *safe, *options, "-c", f"{_ISOLATED}\n{code}", *arguments]


def python_module(python: str | Path, module: str, *arguments: str, folder: Path | None = None) -> list[str]:
    """Return the command line that does what `python -m MODULE` does, with `folder` in place of the current folder."""
    searched = f"sys.path.insert(0, {str(folder)!r}); " if folder else ""
    code = f"{searched}import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return python_code(python, code, *arguments)


def run(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    seconds: float | None = None,
    follow: bool = False,
) -> CommandResult:
    """Run a process with empty standard input. The code is 127 for a missing tool and 124 on timeout, as in a shell.

    It is 124 also for a process that prints more than MOST, of which nothing is returned. After a timeout or a Ctrl-C
    its process group is interrupted, and STOP_S later killed. With `follow`, for a process with one thread, the command
    also ends where this process is killed.
    """
    try:
        process = subprocess.Popen(
            list(command),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a group of its own, which is ended with its children
            preexec_fn=partial(die_with_parent, os.getpid()) if follow else None,
        )
    except OSError as error:
        return CommandResult(NOT_STARTED, err=str(error))
    with process:
        try:
            out, err = _printed(process, seconds)
        except (subprocess.TimeoutExpired, OverflowError) as error:
            _end(process)
            endless = isinstance(error, OverflowError)
            return CommandResult(TIMED_OUT, err=f"{error}" if endless else f"no result within {seconds} s")
        except BaseException:
            _end(process)
            raise
    return CommandResult(process.returncode, out, err)


def _printed(process: subprocess.Popen[bytes], seconds: float | None) -> tuple[str, ...]:
    """Return what a process prints on both streams until it ends.

    Raises TimeoutExpired, and OverflowError above MOST.
    """
    ends = None if seconds is None else time.monotonic() + seconds
    printed = {stream: bytearray() for stream in (process.stdout, process.stderr) if stream}
    with selectors.DefaultSelector() as pipes:
        for stream in printed:
            pipes.register(stream, selectors.EVENT_READ)
        while pipes.get_map():
            ready = pipes.select(ends and max(ends - time.monotonic(), 0))
            if ends and time.monotonic() >= ends:
                raise subprocess.TimeoutExpired(process.args, seconds or 0)
            for key, _ in ready:
                block = os.read(key.fd, BLOCK)
                printed[key.fileobj] += block  # type: ignore[index]
                if not block:
                    pipes.unregister(key.fileobj)
                elif len(printed[key.fileobj]) > MOST:  # type: ignore[index]
                    raise OverflowError(f"printed more than {MOST >> 20} MiB")
    process.wait(ends and max(ends - time.monotonic(), 0))
    texts = (text.decode("utf-8", "replace") for text in printed.values())
    return tuple(text.replace("\r\n", "\n").replace("\r", "\n") for text in texts)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its group: what it wrote can be deleted then."""
    with contextlib.suppress(subprocess.TimeoutExpired, ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
        process.wait(STOP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def redacted(text: str) -> str:
    """Return `text` without the user and password of any URL: index URLs contain tokens."""
    return re.sub(r"(?<=://)[^/\s]{0,4000}@", "***@", text)
