"""The log of a rank: unmodified bytes, beginning and end only, limited in size on disk and in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from matrix.store.secrets import Masker
from matrix.verdicts.outcome import EVIDENCE

HEAD: Final = 2**20  # bytes kept from the beginning; a save-and-load on megatron-core wrote 14 kB
TAIL: Final = 2**20  # bytes kept from the end, where the error message of a crash is


class Log:
    """A file at `path` that keeps the first `head` and the last `tail` bytes written to it.

    The head is written at once, the tail when the log is closed; a line between them counts the bytes left out.
    `secrets` are masked before anything is written.
    """

    def __init__(self, path: Path, head: int = HEAD, tail: int = TAIL, secrets: Sequence[str] = ()) -> None:
        self.path, self._room, self._keep = path, head, tail
        self._masker = Masker(secrets)
        self._file = path.open("wb", buffering=0)
        self._tail = bytearray()
        self._left_out = 0

    def write(self, chunk: bytes) -> None:
        """Add output."""
        self._put(self._masker.take(chunk))

    def _put(self, chunk: bytes) -> None:
        if self._room:
            self._file.write(chunk[: self._room])
            chunk, self._room = chunk[self._room :], max(0, self._room - len(chunk))
        self._tail += chunk
        # Cut at twice the size, not at every write: many small writes then share one copy.
        if len(self._tail) > 2 * self._keep:
            self._cut()

    def close(self) -> None:
        """Write the tail and close the file; a second call does nothing."""
        if self._file.closed:
            return
        self._put(self._masker.rest())
        self._cut()
        with self._file:
            if self._left_out:
                self._file.write(b"\n[... %d bytes left out ...]\n" % self._left_out)
            self._file.write(self._tail)

    def _cut(self) -> None:
        surplus = max(0, len(self._tail) - self._keep)
        del self._tail[:surplus]
        self._left_out += surplus


def end_of(path: Path, limit: int = EVIDENCE) -> str:
    """Return the last `limit` bytes of a file as text; invalid UTF-8 is replaced by U+FFFD."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - limit))
        return file.read().decode(errors="replace")
