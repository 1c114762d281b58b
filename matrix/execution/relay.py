"""Carries what begins and the records of what ended from a run's pytest processes to the one that shows progress.

A Unix socket and JSON lines. The journal, not this, is what counts.
"""

from __future__ import annotations

import contextlib
import json
import socket
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from matrix.errors import MatrixError
from matrix.verdicts.record import Record

SHORT = 70  # bytes of a temporary folder's path that leave room for our own part


@dataclass(frozen=True)
class CaseBegun:
    """A case begins; `key` is its name within the plan."""

    key: str


@dataclass(frozen=True)
class CaseEnded:
    """A case has ended, with this record."""

    record: Record


Message = CaseBegun | CaseEnded


def encode(message: Message) -> bytes:
    """Return a message as its line."""
    value = {"begun": message.key} if isinstance(message, CaseBegun) else {"ended": message.record.to_json()}
    return json.dumps(value).encode() + b"\n"


def decode(line: str | bytes) -> Message:
    """Return the message of a line. Raises KeyError, TypeError or ValueError where it is none."""
    value = json.loads(line)
    return CaseBegun(value["begun"]) if "begun" in value else CaseEnded(Record.from_json(value["ended"]))


class Receiver:
    """Calls `begun` with the key of each case that begins and `show` with every record that is sent to `address`.

    `left` is called when a process that was connected has hung up. One call at a time, until closed. A context manager.
    """

    def __init__(
        self,
        show: Callable[[Record], None],
        begun: Callable[[str], None] = lambda key: None,
        left: Callable[[], None] = lambda: None,
    ) -> None:
        self._show, self._begun, self._left, self._lock = show, begun, left, threading.Lock()
        # A socket's path holds 107 bytes at most (unix(7)), and a temporary folder may lie deep.
        short = len(tempfile.gettempdir()) < SHORT
        self._folder = tempfile.TemporaryDirectory(prefix="megatrix-", dir=None if short else "/tmp")  # noqa: S108
        self.address = str(Path(self._folder.name) / "records")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.address)
        self._socket.listen()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Receiver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept()
        for thread in self._threads:
            thread.join(timeout=5)
        self._socket.close()
        self._folder.cleanup()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._read, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _read(self, connection: socket.socket) -> None:
        with connection, connection.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                if not line.endswith("\n"):
                    break  # who sent it was killed in the midst
                message = decode(line)
                with self._lock:
                    if isinstance(message, CaseBegun):
                        self._begun(message.key)
                    else:
                        self._show(message.record)
        with self._lock:
            self._left()


class Sender:
    """Sends records to a Receiver's address; "" sends nowhere.

    The connection is a lifeline as well: when the receiver dies, `orphaned` is called, from another thread.
    Raises MatrixError when nobody listens at the address: the run that asked for this process is gone.
    """

    def __init__(self, address: str, orphaned: Callable[[], None]) -> None:
        self._socket: socket.socket | None = None
        if address:
            self._socket = socket.socket(socket.AF_UNIX)
            try:
                self._socket.connect(address)
            except OSError as error:
                self._socket.close()
                raise MatrixError("the run that this process belongs to is gone", where=address, got=error) from error
            threading.Thread(target=self._watch, args=(orphaned,), daemon=True).start()

    def send(self, record: Record) -> None:
        """Send one record; a receiver that is gone is `orphaned`'s business."""
        self._send(CaseEnded(record))

    def begin(self, key: str) -> None:
        """Say that a case begins."""
        self._send(CaseBegun(key))

    def _send(self, message: Message) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.sendall(encode(message))

    def close(self) -> None:
        """Hang up."""
        if self._socket is not None:
            listening, self._socket = self._socket, None
            listening.shutdown(socket.SHUT_RDWR)
            listening.close()

    def _watch(self, orphaned: Callable[[], None]) -> None:
        listening = self._socket
        with contextlib.suppress(OSError):
            if listening is not None and not listening.recv(1) and self._socket is not None:
                orphaned()
