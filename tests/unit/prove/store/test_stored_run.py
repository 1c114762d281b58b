"""Every planned case has exactly one record, however the run ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.ground.verdicts.record import Record, Verdict
from matrix.prove.store.journal import Journal
from matrix.prove.store.paths import PLAN
from matrix.prove.store.stored_run import read, write_plan
from tests.unit.show.samples import MCORES, cell, planned, record

RECORDS = [record(where=cell(mcore=mcore)) for mcore in MCORES[:3]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_plan(tmp_path / "run-1", [planned(each) for each in RECORDS])
    return tmp_path / "run-1"


def test_a_case_never_started_is_not_reached(folder: Path) -> None:
    (first, *_) = read(folder).records
    assert (first.verdict, first.outcome.kind) == (Verdict.NOT_REACHED, OutcomeKind.NOT_REACHED)
    assert first.outcome.reason == "never started"
    assert (first.run, first.reproduce, first.why) == ("run-1", RECORDS[0].reproduce, RECORDS[0].why)


def test_an_interrupted_case_has_its_start_time(folder: Path) -> None:
    with Journal(folder / "journal-a.jsonl", now=lambda: "2026-01-31T02:00:00.000Z") as journal:
        journal.started(RECORDS[1].key)
    reason = read(folder).records[1].outcome.reason
    assert reason == "started at 2026-01-31T02:00:00.000Z, never finished: the run was interrupted"


def test_a_lost_case_keeps_its_reason(folder: Path) -> None:
    lost = replace(RECORDS[1], verdict=Verdict.NOT_REACHED, outcome=Outcome(OutcomeKind.NOT_REACHED, "server lost"))
    with Journal(folder / "journal-a.jsonl") as journal:
        journal.result(lost)
    assert read(folder).records[1].outcome.reason == "server lost"


def test_records_follow_the_order_of_the_plan(folder: Path) -> None:
    with Journal(folder / "journal-a.jsonl") as journal:
        for each in reversed(RECORDS):
            journal.result(each)
    assert list(read(folder).records) == RECORDS


@given(st.lists(st.sampled_from(RECORDS)))
def test_every_planned_case_has_one_record(tmp_path_factory: pytest.TempPathFactory, results: list[Record]) -> None:
    folder = tmp_path_factory.mktemp("run")
    write_plan(folder, [planned(each) for each in RECORDS])
    with Journal(folder / "journal-a.jsonl") as journal:
        for each in results:
            journal.result(each)
    assert [each.key for each in read(folder).records] == [each.key for each in RECORDS]


def test_a_result_outside_the_plan_has_a_note(folder: Path) -> None:
    with Journal(folder / "journal-a.jsonl") as journal:
        journal.result(record(case="pp2"))
    *_, last = read(folder).records
    assert (last.case, last.notes) == ("pp2", ("not in the plan of this run",))


def test_a_case_planned_twice_is_an_error(tmp_path: Path) -> None:
    write_plan(tmp_path, [planned(RECORDS[0])] * 2)
    with pytest.raises(MatrixError, match=r"plan.json, case 1: a case planned twice"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": "another"}, "whose key is not its own"),
        ({"level": "moon"}, "level: unknown value: got 'moon'"),
        ({"cell": {"id": "x"}}, "cell: a key is missing"),
        ({"notes": None}, "notes: not a list"),
        ({"ranks": 0}, "0 ranks"),
        ({"rank": 2}, "unknown key"),
    ],
)
def test_an_unreadable_case_is_an_error(tmp_path: Path, change: dict[str, object], message: str) -> None:
    write_plan(tmp_path, [{**planned(RECORDS[0]), **change}])
    with pytest.raises(MatrixError, match=message):
        read(tmp_path)


@pytest.mark.parametrize("text", ["", "[{", "{}", "[1]", '[{"key": "x"}]'])
def test_the_error_of_a_broken_plan_names_it(tmp_path: Path, text: str) -> None:
    (tmp_path / PLAN).write_text(text)
    with pytest.raises(MatrixError, match=r"plan\.json"):
        read(tmp_path)


def test_a_folder_without_a_plan_raises(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="no such run"):
        read(tmp_path)
