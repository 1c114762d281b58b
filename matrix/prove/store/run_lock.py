"""The lock of a folder: one process at a time works on a run, from its plan to its report, or on a bisection."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Final

from matrix.ground.errors import MatrixError
from matrix.prove.store.paths import unwritable
from matrix.prove.store.secrets import bare, values

FILE: Final = "run.lock"  # in the folder; its content names the holder, without secrets of its command


class RunLock(AbstractContextManager["RunLock"]):
    """Holds the folder of a `work` (run, bisection) until `release` or the end of this process, also by kill -9.

    Child processes do not inherit it.
    Raises MatrixError at once, with the holder's pid, if another process holds it.
    """

    def __init__(self, folder: Path, work: str = "run") -> None:
        path = folder / FILE
        try:
            self._held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        except OSError as error:
            raise unwritable(path, error) from error
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            holder = {"pid": os.getpid(), "host": socket.gethostname(), "command": bare(" ".join(sys.argv), values())}
            os.ftruncate(self._held, 0)
            os.pwrite(self._held, json.dumps(holder).encode(), 0)
        except BlockingIOError:
            pid, owner = _holder(self._held)
            os.close(self._held)
            raise MatrixError(
                f"another process works on this {work}",
                where=str(folder),
                got=owner,
                expected="one process at a time",
                fix=f"wait until it ends, or stop it (kill -INT {pid}), then repeat the command",
            ) from None
        except OSError as error:
            os.close(self._held)
            raise unwritable(path, error) from error

    def release(self) -> None:
        """Release the folder."""
        os.close(self._held)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


def _holder(held: int) -> tuple[str, str]:
    """Return the pid of the holder and its description; it may not have written them yet."""
    try:
        holder = json.loads(os.pread(held, 65536, 0))
        return str(holder["pid"]), f"process {holder['pid']} on {holder['host']}: {holder['command']}"
    except (ValueError, KeyError, TypeError, OSError):
        return "PID", "a process that has just started"
