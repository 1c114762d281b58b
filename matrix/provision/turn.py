"""A turn to do something that one of several named parties has at a time."""

from __future__ import annotations

import threading


class Turn:
    """A lock between threads that its holder may take again, and that any thread may end for it."""

    def __init__(self) -> None:
        self._free = threading.Lock()
        self._holder = ""

    def begin(self, name: str) -> None:
        """Wait for the turn; a party that has it keeps it."""
        if self._holder != name:
            self._free.acquire()
            self._holder = name

    def end(self, name: str) -> None:
        """Pass the turn on, if this party has it."""
        if self._holder == name:
            self._holder = ""
            self._free.release()
