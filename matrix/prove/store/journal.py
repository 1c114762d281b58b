"""The journal of a run: append-only JSON Lines that stay intact after kill -9 and after a full disk.

Each writing process has one file in the run's folder. The parent writes it, never a rank: a crashing rank can't damage
it. STARTED comes before RESULT, each line is on the disk before the next step, and each line ends in a checksum:

    {"at":"2026-01-31T02:00:00.000Z","started":"CELL FAILURE CASE LEVEL","crc":"0f1e2d3c"}
    {"at":"2026-01-31T02:00:01.100Z","result":{...Record...},"crc":"4b5a6978"}

The checksum (CRC-32 of the bytes before ``,"crc"``) detects torn writes and bad disks, not tampering.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import threading
import zlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from matrix.ground.catalog.codec import decode, encode
from matrix.ground.catalog.regular_file import open_regular
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.record import Record, Verdict
from matrix.prove.store.paths import flush, unwritable
from matrix.prove.store.secrets import bare, masked_outcome, values

_SEAL = re.compile(rb',"crc":"([0-9a-f]{8})"\}\Z')
# Two records on one line: a newline was lost, so the line is corrupt and not only torn.
_SEAL_INSIDE = re.compile(rb',"crc":"[0-9a-f]{8}"\}\0*[^\n\0]')


def utc_now() -> str:
    """Return the current time in the format of journals and records: UTC, ISO 8601, milliseconds."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True)
class JournalState:
    """The contents of the journals of one run.

    `results`: case key -> Record, in the order of the journals; the first result of a key wins. A later start of a case
    that was unavailable replaces it: a run goes on where the case can run.
    `lost`: case key -> Record with the reason why a case was not reached. It is no result: a resumed run runs the case.
    `started`: case key -> time of its last start, with or without a result.
    `began`, `ended`: times of the first and the last line.
    """

    results: Mapping[str, Record]
    lost: Mapping[str, Record]
    started: Mapping[str, str]
    began: str = ""
    ended: str = ""


class Journal(AbstractContextManager["Journal"]):
    """One process's journal file. Several threads of that process may use it.

    `path` must not exist: nothing is appended to a truncated journal, so only the last line can be torn.
    Every method raises MatrixError when the line is not safely on the disk; the file does not have the line then.
    `secrets` (by default those of this process's environment), and all that looks like one, are masked in every line.
    """

    def __init__(self, path: Path, *, now: Callable[[], str] = utc_now, secrets: tuple[str, ...] | None = None) -> None:
        self._path, self._now, self._size, self._lock = path, now, 0, threading.Lock()
        self._secrets = values() if secrets is None else secrets
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
            flush(path.parent)
            self._held = hold(path.parent, fcntl.LOCK_SH)
        except OSError as error:
            raise unwritable(path, error) from error

    @classmethod
    def new(
        cls, run_folder: Path, *, now: Callable[[], str] = utc_now, secrets: tuple[str, ...] | None = None
    ) -> Journal:
        """Open a new journal for this process in a run's folder. File names sort by opening time."""
        stamp = re.sub(r"[^0-9TZ]", "", now())
        # Processes in containers share process ids.
        path = run_folder / f"journal-{stamp}-{os.getpid()}-{os.urandom(2).hex()}.jsonl"
        return cls(path, now=now, secrets=secrets)

    def started(self, key: str) -> str:
        """Record that a case is about to run; call it before any part of the case runs. Returns the time."""
        return self._append("started", key)

    def result(self, record: Record) -> str:
        """Record the result of a case. Returns the time."""
        outcome = masked_outcome(record.outcome, self._secrets)
        notes = tuple(bare(note, self._secrets) for note in record.notes)
        return self._append("result", encode(replace(record, outcome=outcome, notes=notes)))

    def close(self) -> None:
        """Close the file; every line is already on the disk."""
        os.close(self._file)
        os.close(self._held)

    def __exit__(self, *error: object) -> None:
        self.close()

    def _append(self, event: str, value: object) -> str:
        with self._lock:
            at = self._now()
            body = json.dumps({"at": at, event: value}, separators=(",", ":")).encode("ascii")[:-1]
            line = b'%s,"crc":"%08x"}\n' % (body, zlib.crc32(body))
            try:
                try:
                    unwritten = memoryview(line)
                    while unwritten:  # one write, unless the disk fills up during it: the next write then raises
                        unwritten = unwritten[os.write(self._file, unwritten) :]
                    os.fsync(self._file)
                except BaseException:  # also on Ctrl-C: the next line must not follow half a line
                    os.ftruncate(self._file, self._size)
                    raise
            except OSError as error:
                raise unwritable(self._path, error) from error
            self._size += len(line)
            return at


def settle(run_folder: Path, waits: Callable[[], None] = lambda: None) -> None:
    """Wait until no process has a journal open in the folder: processes of a killed run take seconds to stop.

    `waits` is called first if there are any.
    """
    try:
        os.close(hold(run_folder, fcntl.LOCK_EX | fcntl.LOCK_NB))
    except BlockingIOError:
        waits()
        os.close(hold(run_folder, fcntl.LOCK_EX))


def hold(run_folder: Path, how: int = fcntl.LOCK_SH) -> int:
    """Return a file descriptor that holds the run's lock; the system releases it when the process dies.

    Processes that run cases share it (LOCK_SH). Raises MatrixError where the lock file can't be written.
    """
    path = run_folder / "lock"
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise unwritable(path, error) from error
    try:
        fcntl.flock(lock, how)
    except BaseException:
        os.close(lock)
        raise
    return lock


def read(run_folder: Path) -> JournalState:
    """Return the contents of all journals of a run. Raises what Journals.read raises."""
    return Journals(run_folder).read()


class Journals:
    """The journals of a run, for a process that reads them more than once: it reads each line once."""

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder
        self._read: dict[Path, _JournalLines] = {}

    def read(self) -> JournalState:
        """Return the contents of all journals, in the order of their names.

        A torn last line of a file is ignored. A bad line anywhere else raises MatrixError with file and line: its
        content is lost and must not be dropped silently.
        """
        results: dict[str, Record] = {}
        lost: dict[str, Record] = {}
        started: dict[str, str] = {}
        times: list[str] = []
        for path in sorted(self._folder.glob("journal-*.jsonl")):
            lines = self._read.setdefault(path, _JournalLines(path))
            lines.extend()
            for at, event in lines.events:
                times.append(at)
                if isinstance(event, Record):
                    (lost if event.verdict is Verdict.NOT_REACHED else results).setdefault(event.key, event)
                else:
                    started[event] = at
                    lost.pop(event, None)
                    if event in results and results[event].verdict is Verdict.UNAVAILABLE:
                        del results[event]
        lost = {key: record for key, record in lost.items() if key not in results}
        return JournalState(results, lost, started, min(times, default=""), max(times, default=""))


class _JournalLines:
    """The lines of one journal: the time of each, and the key of the case that started or the record of its result."""

    def __init__(self, path: Path) -> None:
        self.events: list[tuple[str, str | Record]] = []
        self._path, self._end = path, 0

    def extend(self) -> None:
        """Read the lines that were added. Raises MatrixError."""
        bad = False
        try:
            with open_regular(self._path, what="the journal can't be read") as file:
                file.seek(self._end)
                for line in file:
                    if bad or (entry := _opened(line.rstrip(b"\n"))) is None:
                        if bad or _SEAL_INSIDE.search(line):
                            raise self._corrupt()
                        bad = True  # torn, if it is the last line
                        continue
                    self.events.append(self._event(entry))
                    self._end += len(line)
        except OSError as error:
            raise MatrixError(
                "the journal can't be read", where=str(self._path), got=error.strerror or error
            ) from error

    @property
    def _place(self) -> str:
        return f"{self._path}:{len(self.events) + 1}"

    def _event(self, entry: Mapping[str, Any]) -> tuple[str, str | Record]:
        try:
            at, key = entry["at"], entry.get("started", "")
            if not isinstance(at, str) or not isinstance(key, str):
                raise TypeError("a time or a case that is not a text")
            return at, key or decode(Record, entry["result"])
        except (MatrixError, KeyError, TypeError, ValueError) as error:
            raise MatrixError(
                "a whole line that this version can't read",
                where=self._place,
                got=f"{type(error).__name__}: {error}",
                expected="a started case or the record of a result",
                fix="read it with the version that wrote it",
            ) from error

    def _corrupt(self) -> MatrixError:
        return MatrixError(
            "a corrupt line within the journal",
            where=self._place,
            expected='one JSON object that ends in its checksum, ,"crc":"xxxxxxxx"}',
            fix="the record on this line is lost. To continue without it, move the file out of the run's folder and "
            "resume: its cases run again",
        )


def _opened(line: bytes) -> dict[str, Any] | None:
    """Return the content of a line, {} when it is no JSON object, or None when its checksum is missing or wrong."""
    seal = _SEAL.search(line)
    if seal is None or zlib.crc32(line[: seal.start()]) != int(seal[1], 16):
        return None
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}
