"""Read pipes without blocking, and pass each chunk on."""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable
from typing import Final, Protocol

CHUNK: Final = 65_536  # bytes per read: the default capacity of a pipe
PIPE: Final = 2**20  # largest capacity of a pipe in bytes (/proc/sys/fs/pipe-max-size)


class Readable(Protocol):
    """A pipe's end: a multiprocessing Connection, or the stdout of a subprocess."""

    def fileno(self) -> int: ...  # noqa: D102  (defined by Python)
    def close(self) -> None: ...  # noqa: D102


class Pump:
    """Passes the bytes of a pipe to `take`, one chunk per event, so that no rank can block the event loop."""

    def __init__(self, pipe: Readable, take: Callable[[bytes], object], selector: selectors.BaseSelector) -> None:
        self.finished = False
        self._pipe, self._take, self._selector = pipe, take, selector
        os.set_blocking(pipe.fileno(), False)
        selector.register(pipe.fileno(), selectors.EVENT_READ, self.read)

    def read(self) -> bool:
        """Read one chunk and return whether there was one. Closes the pipe at its end."""
        if self.finished:  # by an earlier event of the same select
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
        """Read the buffered bytes, but not an endless stream of new ones."""
        for _ in range(PIPE // CHUNK):
            if not self.read():
                return

    def finish(self) -> None:
        """Read the buffered bytes and close the pipe."""
        self.drain()
        if not self.finished:
            self._close()

    def _close(self) -> None:
        self.finished = True
        self._selector.unregister(self._pipe.fileno())
        self._pipe.close()
