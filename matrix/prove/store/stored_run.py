"""A run: its plan joined with its journals, so that every report has every planned case; and the lock of its folder."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from matrix.ground.catalog.codec import MalformedError, decode
from matrix.ground.catalog.regular_file import read_regular
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.ground.verdicts.planned import Planned
from matrix.ground.verdicts.record import MACHINE, SILENT, Record, Verdict
from matrix.prove.planning.rerun import PlanEntry, reproduce_line
from matrix.prove.store import journal
from matrix.prove.store.history import History
from matrix.prove.store.paths import PLAN, is_night, unwritable, write_whole
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

    def __exit__(self, *error: object) -> None:
        self.release()


def _holder(held: int) -> tuple[str, str]:
    """Return the pid of the holder and its description; it may not have written them yet."""
    try:
        holder = json.loads(os.pread(held, 65536, 0))
        return str(holder["pid"]), f"process {holder['pid']} on {holder['host']}: {holder['command']}"
    except (ValueError, KeyError, TypeError, OSError):
        return "PID", "a process that has just started"


LARGEST: Final = 2**30  # bytes of a plan; one of 100,000 cases has 100 MB


@dataclass(frozen=True)
class Night:
    """The current state of a run: one record per planned case, in the order of the plan.

    `began`, `ended`: times (UTC, ISO 8601) of the first and last journal line; "" when nothing was started.
    `missing`: level -> the last night in which it ran, for each level of earlier nights that did not run in this one.
    """

    run: str
    records: tuple[Record, ...]
    began: str = ""
    ended: str = ""
    missing: Mapping[str, str] = field(default_factory=dict)


class StoredRun:
    """The plan and the journals of the run in `folder`: the plan, and each line of a journal, is read once.

    Every method raises MatrixError on a missing or broken plan, on a case planned twice and on a broken journal.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.journals = folder, journal.Journals(folder)

    @classmethod
    def create(cls, folder: Path, cases: Sequence[Planned], environ: Mapping[str, str] = os.environ) -> StoredRun:
        """Write the plan of a new run; `environ` are the variables of its processes."""
        run = cls(folder)
        run.entries = {case.key: PlanEntry(case, reproduce_line(case, environ)) for case in cases}
        write_plan(folder, [entry.to_plain() for entry in run.entries.values()])
        return run

    @cached_property
    def entries(self) -> dict[str, PlanEntry]:
        """Return the plan by case key."""
        path, entries = self.folder / PLAN, dict[str, PlanEntry]()
        for number, case in enumerate(plan(self.folder)):
            where = f"{path}, case {number}"
            entry = _entry(case, where)
            if entry.planned.key in entries:
                raise MatrixError("a case planned twice", where=where, got=entry.planned.key)
            entries[entry.planned.key] = entry
        return entries

    @cached_property
    def planned(self) -> list[Planned]:
        """Return the cases of the plan."""
        return [entry.planned for entry in self.entries.values()]

    def pending(self, bases: Collection[str] | None = None) -> list[Planned]:
        """Return the cases, of these bases only, that have no result yet."""
        results = self.journals.read().results
        return [case for case in self.planned if case.key not in results and (bases is None or case.cell.base in bases)]

    def unavailable(self, machine: str | None) -> list[Planned]:
        """Return the unavailable cases that never started, or that started on another machine than this, if known."""
        results = self.journals.read().results

        def settled(record: Record | None) -> bool:
            repeated = machine is None or not record or record.resolved.get(MACHINE, machine) == machine
            return not record or record.verdict is not Verdict.UNAVAILABLE or bool(record.started and repeated)

        return [case for case in self.planned if not settled(results.get(case.key))]

    def night(self) -> Night:
        """Join the plan with the journals.

        A planned case without a result is `not-reached`. A result that is not in the plan comes last, with a note.
        """
        run, state = self.folder.name, self.journals.read()
        records: dict[str, Record] = {}
        for key, entry in self.entries.items():
            result = state.results.get(key) or state.lost.get(key)
            records[key] = result or _not_reached(entry, run, state.started.get(key, ""))
        for key, result in state.results.items():
            if key not in records:
                records[key] = replace(result, notes=(*result.notes, "not in the plan of this run"))
        return Night(run, tuple(records.values()), state.began, state.ended)


def added(run: StoredRun, history: History) -> Night:
    """Add a run to the history and return it, compared with the nights before it."""
    current = run.night()
    history.add(current.run, current.records)
    if not is_night(current.run):
        return current
    levels = {record.level for record in current.records if record.verdict not in SILENT}
    nights = history.last_with(current.run).items()
    return replace(current, missing={level.value: name for level, name in nights if level not in levels})


def write_plan(run_folder: Path, cases: Sequence[Mapping[str, Any]]) -> None:
    """Write the plan of a run, before the run starts: a resumed run keeps it. Each case is the JSON of a PlanEntry."""
    write_whole(run_folder / PLAN, json.dumps(list(cases), indent=1) + "\n")


def read(run_folder: Path) -> Night:
    """Return what StoredRun.night returns."""
    return StoredRun(run_folder).night()


def plan(run_folder: Path) -> list[dict[str, Any]]:
    """Return the cases of a run's plan, as `write_plan` received them."""
    path = run_folder / PLAN
    if not path.exists():
        raise MatrixError(
            "no such run, or it ended before it had a plan", where=str(path), fix="name another run, or start a new one"
        )
    try:
        content = read_regular(path, what="the plan can't be read", largest=LARGEST, fix="start a new run")
        cases: list[dict[str, Any]] = json.loads(content)
        if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
            raise MatrixError("not a plan", where=str(path), expected="a JSON list of objects, one per case")
    except (ValueError, RecursionError) as error:
        raise MatrixError("the plan can't be read", where=str(path), got=error, fix="start a new run") from error
    return cases


def _entry(entry: Mapping[str, Any], where: str) -> PlanEntry:
    try:
        return decode(PlanEntry, entry, where)
    except MalformedError as error:
        raise MatrixError(
            "not a planned case",
            where=where,
            got=error.brief.removeprefix(f"{where}."),
            expected="a case as this version writes it",
            fix="start a new run: another version wrote this plan",
        ) from error


def _not_reached(entry: PlanEntry, run: str, started: str) -> Record:
    """Return the record of a planned case that has no result."""
    reason = f"started at {started}, never finished: the run was interrupted" if started else "never started"
    return Record(
        entry.planned,
        Verdict.NOT_REACHED,
        Outcome(OutcomeKind.NOT_REACHED, reason),
        reproduce=entry.reproduce,
        notes=entry.planned.notes,
        run=run,
        started=started,
    )
