"""A night: its plan joined with its journals, so that every report has every planned case."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from matrix.catalog.codec import MalformedError, decode
from matrix.errors import MatrixError
from matrix.planning.rerun import PlanEntry
from matrix.store import journal
from matrix.store.history import History
from matrix.store.paths import PLAN, is_night, regular, write_whole
from matrix.verdicts.outcome import Outcome, OutcomeKind
from matrix.verdicts.planned import Planned
from matrix.verdicts.record import SILENT, Record, Verdict


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


def added(run_folder: Path, history: History) -> Night:
    """Add a run to the history and return it, compared with the nights before it."""
    ended = read(run_folder)
    history.add(ended.run, ended.records)
    if not is_night(ended.run):
        return ended
    ran = {record.level for record in ended.records if record.verdict not in SILENT}
    before = history.last_with(ended.run)
    return replace(ended, missing={level.value: run for level, run in before.items() if level not in ran})


def write_plan(run_folder: Path, cases: Sequence[Mapping[str, Any]]) -> None:
    """Write the plan of a run, before the run starts. It is written once: a resumed run keeps its plan.

    Each case is the JSON of a PlanEntry. Raises MatrixError for a run that has a plan and for a case that could not be
    read back.
    """
    path = run_folder / PLAN
    if path.exists():
        raise MatrixError("the run has a plan", where=str(path), fix="resume it, or give the new run another name")
    for number, case in enumerate(cases):
        _entry(case, f"{path}, case {number}")  # raises for a case that can't be read back
    write_whole(path, json.dumps(list(cases), indent=1) + "\n")


def read(run_folder: Path) -> Night:
    """Join a run's plan with its journals.

    A planned case without a result is `not-reached`. A result that is not in the plan comes last, with a note.
    Raises MatrixError on a missing or broken plan and on a case planned twice, and whatever `journal.read` raises.
    """
    run, path, state = run_folder.name, run_folder / PLAN, journal.read(run_folder)
    records: dict[str, Record] = {}
    for number, case in enumerate(plan(run_folder)):
        where = f"{path}, case {number}"
        entry = _entry(case, where)
        key = entry.planned.key
        if key in records:
            raise MatrixError("a case planned twice", where=where, got=key)
        result = state.results.get(key) or state.lost.get(key)
        if result:  # journals of earlier versions have a part of the planned case
            records[key] = replace(result, planned=entry.planned)
        else:
            records[key] = _not_reached(entry, run, state.started.get(key, ""))
    for key, result in state.results.items():
        if key not in records:
            records[key] = replace(result, notes=(*result.notes, "not in the plan of this run"))
    return Night(run, tuple(records.values()), state.began, state.ended)


def plan(run_folder: Path) -> list[dict[str, Any]]:
    """Return the cases of a run's plan, as `write_plan` received them."""
    path = run_folder / PLAN
    try:
        with regular(path) as file:
            cases: list[dict[str, Any]] = json.loads(file.read())
        if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
            raise MatrixError("not a plan", where=str(path), expected="a JSON list of objects, one per case")
    except FileNotFoundError as error:
        raise MatrixError(
            "no such run, or it ended before it had a plan", where=str(path), fix="name another run, or start a new one"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise MatrixError("the plan can't be read", where=str(path), got=error, fix="start a new run") from error
    return cases


def planned(run_folder: Path) -> list[Planned]:
    """Return the cases of a run's plan. Raises MatrixError on a missing or broken plan."""
    path = run_folder / PLAN
    cases: dict[str, Planned] = {}
    for number, entry in enumerate(plan(run_folder)):
        case = _entry(entry, f"{path}, case {number}").planned
        if case.key in cases:
            raise MatrixError("a case planned twice", where=f"{path}, case {number}", got=case.key)
        cases[case.key] = case
    return [*cases.values()]


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
