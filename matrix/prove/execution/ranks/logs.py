"""The log of a rank: its bytes without secrets, beginning and end only, limited in size on disk and in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from matrix.ground.verdicts.outcome import EVIDENCE
from matrix.prove.store.secrets import Masker, bare_bytes

HEAD: Final = 2**20  # bytes kept from the beginning; a save-and-load on megatron-core wrote 14 kB
TAIL: Final = 2**20  # bytes kept from the end, where the error message of a crash is


class Log:
    """A file at `path` that keeps the first `head` and the last `tail` bytes written to it.

    The lines of the head are written at once, the tail when the log is closed; a line between them counts the bytes
    left out. Secrets are masked before anything is written: `secrets`, and what looks like one. Only what is kept is
    searched for them, so a log of any size costs the same.
    """

    def __init__(self, path: Path, head: int = HEAD, tail: int = TAIL, secrets: Sequence[str] = ()) -> None:
        self.path, self._room, self._keep, self._secrets = path, head, tail, secrets
        self._masker = Masker(secrets)
        self._file = path.open("wb", buffering=0)
        self._tail = bytearray()  # as it was received
        self._left_out = 0

    def write(self, chunk: bytes) -> None:
        """Add output."""
        if self._room:
            chunk = self._put(self._masker.take(chunk))
            chunk += b"" if self._room else self._masker.raw()
        self._tail += chunk
        # Cut at twice the size, not at every write: many small writes then share one copy.
        if len(self._tail) > 2 * self._keep:
            self._cut()

    def close(self) -> None:
        """Write the tail and close the file; a second call does nothing."""
        if self._file.closed:
            return
        self._tail = bytearray(self._put(self._masker.rest()) + bare_bytes(bytes(self._tail), self._secrets))
        self._cut()
        with self._file:
            if self._left_out:
                self._file.write(b"\n[... %d bytes left out ...]\n" % self._left_out)
            self._file.write(self._tail)

    def _put(self, masked: bytes) -> bytes:
        """Write to the head what it has room for; return what follows."""
        self._file.write(masked[: self._room])
        beyond, self._room = masked[self._room :], max(0, self._room - len(masked))
        return beyond

    def _cut(self) -> None:
        surplus = max(0, len(self._tail) - self._keep)
        del self._tail[:surplus]
        self._left_out += surplus


def end_of(path: Path, limit: int = EVIDENCE) -> str:
    """Return the last `limit` bytes of a file as text; invalid UTF-8 is replaced by U+FFFD."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - limit))
        return file.read().decode(errors="replace")
