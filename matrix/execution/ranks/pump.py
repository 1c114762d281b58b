"""What comes out of a pipe, moved on as it comes."""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable
from typing import Final, Protocol

CHUNK: Final = 65_536  # bytes a read: what a pipe holds by default
PIPE: Final = 2**20  # bytes that a pipe can hold (/proc/sys/fs/pipe-max-size)


class Readable(Protocol):
    """A pipe's end: a multiprocessing Connection, or the stdout of a subprocess."""

    def fileno(self) -> int: ...  # noqa: D102  (Python's own meaning)
    def close(self) -> None: ...  # noqa: D102


class Pump:
    """Moves what arrives in a pipe to `take`, a chunk at a time, so that no rank can keep the loop from its clock."""

    def __init__(self, pipe: Readable, take: Callable[[bytes], object], selector: selectors.BaseSelector) -> None:
        self.finished = False
        self._pipe, self._take, self._selector = pipe, take, selector
        os.set_blocking(pipe.fileno(), False)
        selector.register(pipe.fileno(), selectors.EVENT_READ, self.read)

    def read(self) -> bool:
        """Take a chunk; return whether there was one. At its end the pipe is closed."""
        if self.finished:  # by an event of the same turn
            return False
        try:
            chunk = os.read(self._pipe.fileno(), CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._close()
            return False
        self._take(chunk)
        return True

    def drain(self) -> None:
        """Take what is there now, and not what somebody goes on writing."""
        for _ in range(PIPE // CHUNK):
            if not self.read():
                return

    def finish(self) -> None:
        """Take what is there now and close the pipe."""
        self.drain()
        if not self.finished:
            self._close()

    def _close(self) -> None:
        self.finished = True
        self._selector.unregister(self._pipe.fileno())
        self._pipe.close()
