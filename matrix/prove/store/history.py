"""The history of all runs: one SQLite file, which also is the verdict cache.

SQLite runs in WAL mode: a night writes while a page is made. The file belongs on a local disk (WAL does not work on
NFS). A file that can't be read is never changed: the error names a fix.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final, TypeVar

from matrix.ground.catalog.codec import MalformedError, decode, decode_json, encode
from matrix.ground.catalog.failure import Level
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.record import Record, Verdict
from matrix.ground.verdicts.trend import NIGHTS, PastResult
from matrix.prove.store.paths import NIGHT, is_night, make_folder

SCHEMA = 1
T = TypeVar("T")
# Seconds to wait for another process's write. A night of 100,000 results is added in about 10 s.
BUSY = 60.0

# Columns with the values of the JSON of a record.
_PRINTED: Final = (
    *("failure", "case", "level", "expectation", "verdict", "outcome", "signature", "other", "seconds", "started"),
    *("content", "cached_from"),
)
_COLUMNS = ", ".join(f'"{name}"' for name in ("run", "key", "cell", "record", *_PRINTED))
_ADD = f"INSERT OR REPLACE INTO results ({_COLUMNS}) VALUES (?, ?, ?, ?{', ?' * len(_PRINTED)})"  # noqa: S608
CACHED = (
    "SELECT runs.id, record FROM results JOIN runs ON runs.number = run"
    " WHERE content = ? AND verdict NOT IN (?, ?) ORDER BY run DESC, results.started DESC LIMIT 1"
)
_PAST_FIELDS: Final = ("cached", "number", "run", "verdict", "seconds", "content", "level", "cell", "started")
_PAST = "SELECT key, failure, cached_from, run, runs.id, verdict, seconds, content, level, cell, started"
_RESULTS = "FROM results JOIN runs ON runs.number = run"
_SILENT = (Verdict.UNAVAILABLE.value, Verdict.NOT_REACHED.value)
# Fixes by a part of SQLite's message, the first that occurs (Python 3.10 has no error codes).
_FIXES: Final = {
    "full": "free disk space",
    "locked": "another process writes to it: try again",
    "readonly": "make the file and its folder writable, or choose another output folder",
    "unable to open": "make the file and its folder writable, or choose another output folder",
    "malformed": "move it away: the next run creates a new one",
    "not a database": "move it away: the next run creates a new one",
}


class HistoryError(MatrixError):
    """The history can't be used. Runs and reports do without."""


def with_history(path: Path, use: Callable[[History], T], warn: Callable[[str], None]) -> T:
    """Return `use` of the history; if it can't be used, warn, and use an empty one that is not stored."""
    try:
        with History(path) as history:
            return use(history)
    except HistoryError as error:
        warn(f"no history: nothing comes from the cache, nothing is compared with earlier runs\n{error}")
    with History(None) as empty:
        return use(empty)


def last_runs(path: Path, warn: Callable[[str], None]) -> Mapping[str, tuple[PastResult, ...]]:
    """Return the last runs of each failure in a history."""
    return with_history(path, lambda history: history.last_runs(), warn)


class History(AbstractContextManager["History"]):
    """The history in one file, created when missing; None keeps it in memory.

    Every method raises HistoryError on a file that it can't use.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        if path:
            make_folder(path.parent, exist_ok=True)
        with self._as_history_errors():
            self._base = sqlite3.connect(path or ":memory:", timeout=BUSY, isolation_level=None)
            try:
                self._open()
            except BaseException:
                self._base.close()
                raise

    def close(self) -> None:
        """Close the file."""
        self._base.close()

    def __exit__(self, *error: object) -> None:
        self.close()

    def add(self, run: str, records: Iterable[Record]) -> None:
        """Add a run's results, all or none. A resumed run is added again; its results replace the earlier ones."""
        with self._as_history_errors(), self._transaction():
            self._base.execute("INSERT INTO runs (id) VALUES (?) ON CONFLICT DO NOTHING", (run,))
            (number,) = self._base.execute("SELECT number FROM runs WHERE id = ?", (run,)).fetchone()
            self._base.executemany(_ADD, (_row(number, record) for record in records))

    def cached(self, content: str) -> Record | None:
        """Return the record of a case that ran with exactly this content, or None when it has to run.

        Only green and learned verdicts are served; `cached_from` is the run that executed the case. Where the newest
        verdict is red the case runs again, whatever older verdicts were: a red is not assumed to be a flake.
        """
        if not content:
            return None
        with self._as_history_errors():
            row = self._base.execute(CACHED, (content, *_SILENT)).fetchone()
            if row is None:
                return None
            run, record = row[0], decode_json(Record, zlib.decompress(row[1]))
        if record.verdict.colour not in ("green", "learned"):
            return None
        return replace(record, cached_from=record.cached_from or run)

    def records_of(self, failure: str) -> list[Record]:
        """Return every record of a failure, of all runs."""
        with self._as_history_errors():
            rows = self._base.execute("SELECT record FROM results WHERE failure = ?", (failure,)).fetchall()
            return [decode_json(Record, zlib.decompress(packed)) for (packed,) in rows]

    def previous(self, run: str) -> Mapping[str, PastResult]:
        """Return, by case key, the last result before this run; `not-reached` is skipped.

        A run that is not in the history yet comes after all others. Before a night only nights count.
        """
        rows = self._select(
            "max(run)",
            "WHERE run < coalesce((SELECT number FROM runs WHERE id = ?), 1 << 62) AND verdict <> ?"
            " AND runs.id LIKE ? GROUP BY key",
            (run, Verdict.NOT_REACHED.value, _compared(run)),
        )
        return {key: result for key, _, result in rows}

    def pasts(self, run: str, nights: int = NIGHTS) -> dict[str, list[PastResult]]:
        """Return, by case key, the results of this run and those before it, oldest first, at most `nights` runs.

        Before a night only nights count.
        """
        results: dict[str, list[PastResult]] = {}
        for key, _, result in self._select(
            "run",
            "WHERE run IN (SELECT number FROM runs"
            " WHERE number <= coalesce((SELECT number FROM runs WHERE id = ?), 1 << 62)"
            " AND id LIKE ? ORDER BY number DESC LIMIT ?) ORDER BY run",
            (run, _compared(run), nights),
        ):
            results.setdefault(key, []).append(result)
        return results

    def last_with(self, run: str) -> dict[Level, str]:
        """Return, for each level that ran in one of the last NIGHTS nights before this run, the last such night."""
        with self._as_history_errors():
            rows = self._base.execute(
                "SELECT level, runs.id, max(run) FROM results JOIN runs ON runs.number = run WHERE run IN"
                " (SELECT number FROM runs WHERE number < coalesce((SELECT number FROM runs WHERE id = ?), 1 << 62)"
                " AND id LIKE ? ORDER BY number DESC LIMIT ?) AND verdict NOT IN (?, ?) GROUP BY level",
                (run, f"%-{NIGHT}", NIGHTS, *_SILENT),
            )
            return {Level(level): night for level, night, _ in rows}

    def seconds(self, nights: int = NIGHTS) -> dict[str, float]:
        """Return, by case key, the median of the seconds that it took in the last `nights` runs in which it ran."""
        with self._as_history_errors():
            rows = self._base.execute(
                "SELECT key, seconds FROM results WHERE verdict NOT IN (?, ?) AND cached_from = '' AND seconds > 0"
                " AND run IN (SELECT number FROM runs ORDER BY number DESC LIMIT ?)",
                (*_SILENT, nights),
            )
            durations: dict[str, list[float]] = {}
            for key, seconds in rows:
                durations.setdefault(key, []).append(float(seconds))
        return {key: median(of_case) for key, of_case in durations.items()}

    def levels(self) -> Mapping[str, frozenset[Level]]:
        """Return the levels at which each failure has run in this history, by failure id."""
        with self._as_history_errors():
            rows = self._base.execute(
                "SELECT DISTINCT failure, level FROM results WHERE verdict NOT IN (?, ?)", _SILENT
            ).fetchall()
        by_failure: dict[str, set[Level]] = {}
        for failure, level in rows:
            by_failure.setdefault(failure, set()).add(Level(level))
        return {failure: frozenset(levels) for failure, levels in by_failure.items()}

    def last_runs(self) -> Mapping[str, tuple[PastResult, ...]]:
        """Return the last run of each failure at each level that has a result in this history, by failure id."""
        results: dict[str, tuple[PastResult, ...]] = {}
        for _, failure, result in self._select(
            "max(started)", "WHERE verdict NOT IN (?, ?) GROUP BY failure, level", _SILENT
        ):
            results[failure] = (*results.get(failure, ()), result)
        return results

    def _select(self, newest: str, condition: str, values: tuple[object, ...]) -> list[tuple[str, str, PastResult]]:
        """Return case key, failure and result of the rows; of a group, those of the row that has `newest`."""
        with self._as_history_errors():
            rows = self._base.execute(f"{_PAST}, {newest} {_RESULTS} {condition}", values)
            return [
                (key, failure, decode(PastResult, dict(zip(_PAST_FIELDS, (bool(cached), *fields), strict=True))))
                for key, failure, cached, *fields, _ in rows
            ]

    def _open(self) -> None:
        (version,) = self._base.execute("PRAGMA user_version").fetchone()
        (tables,) = self._base.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if version != SCHEMA and (version or tables):
            raise HistoryError(
                "not a history that this version of megatrix can read; the file is kept as it is",
                where=str(self._path),
                got=f"schema {version}",
                expected=f"schema {SCHEMA}",
                fix="use the version that wrote it, or move it away: a new one is created",
            )
        self._base.execute("PRAGMA journal_mode = WAL")
        self._base.execute("PRAGMA foreign_keys = ON")
        if version == 0:
            with self._transaction():  # BEGIN IMMEDIATE: two processes may open a new file at once
                (version,) = self._base.execute("PRAGMA user_version").fetchone()
                if version == 0:
                    tables = Path(__file__).with_suffix(".sql").read_text(encoding="utf-8")
                    for statement in filter(str.strip, tables.split(";\n")):
                        self._base.execute(statement)
                    self._base.execute(f"PRAGMA user_version = {SCHEMA}")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._base.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._base.execute("ROLLBACK")
            raise
        self._base.execute("COMMIT")

    @contextmanager
    def _as_history_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, zlib.error, OSError, OverflowError, MalformedError, TypeError, ValueError) as error:
            raise HistoryError(
                "the history can't be used; the file is kept as it is",
                where=str(self._path),
                got=f"{type(error).__name__}: {error}",
                fix=next((fix for part, fix in _FIXES.items() if part in str(error)), _FIXES["malformed"]),
            ) from error


def _compared(run: str) -> str:
    """Return the pattern of the runs that a run is compared with: a night with nights, any other with all."""
    return f"%-{NIGHT}" if is_night(run) else "%"


def _row(number: int, record: Record) -> tuple[object, ...]:
    packed = zlib.compress(json.dumps(encode(record), separators=(",", ":")).encode("ascii"), 1)
    printed = record.to_json()
    return number, record.key, record.cell.id, packed, *(printed[name] for name in _PRINTED)
