"""Send the start and the record of each case from the pytest processes of a run to the process that shows progress.

JSON lines over a Unix socket. Each process stores its results in its journal,
and the relay only shows them; under pytest-xdist the receiver stores those of the workers. The first line goes the
other way: the secrets that the receiver knows, so that all processes of a run mask the same. No environment has them.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from matrix.ground.catalog import codec
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.record import Record
from matrix.prove.store.journal import Journal, utc_now
from matrix.prove.store.secrets import values
from matrix.read import scratch

SECRETS_S: Final = 60.0  # s for the receiver's first line: it is sent on connection; a stopped receiver sends none
Message = str | Record  # the key of a case that has begun, or the record of one that has ended


def encode(message: Message) -> bytes:
    """Return a message as a line of JSON."""
    kind = "begun" if isinstance(message, str) else "ended"
    return json.dumps({kind: codec.encode(message)}).encode() + b"\n"


def decode(line: str | bytes) -> Message:
    """Return the message of a line. Raises MalformedError, KeyError, TypeError or ValueError if it is invalid."""
    value = json.loads(line)
    return codec.decode(str, value["begun"]) if "begun" in value else codec.decode(Record, value["ended"])


class Receiver(AbstractContextManager["Receiver"]):
    """Calls `begun` with the key of each case that begins, and `show` with each record sent to `address`.

    `left` is called when a connected process has disconnected. Calls do not overlap. A context manager.
    Each process that connects is sent `secrets` (by default those of this process's environment).
    """

    def __init__(
        self,
        show: Callable[[Record], None],
        begun: Callable[[str], None] = lambda key: None,
        left: Callable[[], None] = lambda: None,
        secrets: Sequence[str] | None = None,
    ) -> None:
        self._secrets = json.dumps(values() if secrets is None else secrets).encode() + b"\n"
        self._show, self._begun, self._left, self._lock = show, begun, left, threading.Lock()
        self._folder = scratch.temporary("relay")
        self.address = str(Path(self._folder.name) / "records")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.address)
        self._socket.listen()
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __exit__(self, *error: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept()
        for thread in self._threads:
            thread.join(timeout=5)
        self._socket.close()
        self._folder.cleanup()

    def stop(self) -> None:
        """Let the connected processes call `orphaned`. What they still send is received."""
        for connection in self._connections:
            with contextlib.suppress(OSError):  # it has disconnected
                connection.shutdown(socket.SHUT_WR)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._connections.append(connection)
            thread = threading.Thread(target=self._read, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _read(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it has disconnected
            connection.sendall(self._secrets)
        with connection, connection.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                if not line.endswith("\n"):
                    break  # the sender was killed while it wrote
                message = decode(line)
                with self._lock:
                    if isinstance(message, str):
                        self._begun(message)
                    else:
                        self._show(message)
        with self._lock:
            self._left()


class Sender:
    """Sends records to a Receiver's address; with "" it sends nothing.

    When the receiver dies, `orphaned` is called in another thread. Raises MatrixError if the address has no listener,
    because the run of this process has ended.
    """

    def __init__(self, address: str, orphaned: Callable[[], None]) -> None:
        self._socket: socket.socket | None = None
        self._secrets, self._received = (), threading.Event()
        if address:
            self._socket = socket.socket(socket.AF_UNIX)
            try:
                self._socket.connect(address)
            except OSError as error:
                self._socket.close()
                raise MatrixError("the run of this process has ended", where=address, got=error) from error
            threading.Thread(target=self._watch, args=(self._socket, orphaned), daemon=True).start()

    def started(self, key: str) -> str:
        """Send that a case starts; return the time."""
        return self._send(key)

    def result(self, record: Record) -> str:
        """Send one record; return the time. Does not raise if the receiver is gone; `orphaned` handles that."""
        return self._send(record)

    def _send(self, message: Message) -> str:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.sendall(encode(message))
        return utc_now()

    def close(self) -> None:
        """Disconnect."""
        if self._socket is not None:
            listening, self._socket = self._socket, None
            listening.shutdown(socket.SHUT_RDWR)
            listening.close()

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return the secrets that the receiver knows, () without one. Raises MatrixError if they do not arrive."""
        if self._socket is not None and not self._received.wait(SECRETS_S):
            raise MatrixError("the run of this process does not answer", expected=f"its secrets within {SECRETS_S:g} s")
        return self._secrets

    def _watch(self, listening: socket.socket, orphaned: Callable[[], None]) -> None:
        with contextlib.suppress(OSError, ValueError), listening.makefile("rb") as lines:
            self._secrets = tuple(json.loads(lines.readline() or b"[]"))
            self._received.set()
            if not lines.readline() and self._socket is not None:
                orphaned()
        self._received.set()


class JournalSink:
    """Writes to the journal, then to the relay and a callback."""

    def __init__(self, journal: Journal, sender: Sender, also: Callable[[Record], None]) -> None:
        self._journal, self._sender, self._also = journal, sender, also

    def started(self, key: str) -> str:
        """Store that a case starts, and send it."""
        at = self._journal.started(key)
        self._sender.started(key)
        return at

    def result(self, record: Record) -> str:
        """Store a record and send it."""
        at = self._journal.result(record)
        self._sender.result(record)
        self._also(record)
        return at

    def close(self) -> None:
        """Close the connection and the journal."""
        self._sender.close()
        self._journal.close()
