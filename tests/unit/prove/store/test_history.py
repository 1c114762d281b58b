"""The history keeps results, serves only green and learned ones, and never damages a file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.ground.catalog.failure import Level
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.record import Record, Verdict
from matrix.prove.store.history import CACHED, History
from tests.unit.show.samples import night, record

CASE = record()


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with History(tmp_path / "deep" / "history.sqlite") as opened:
        yield opened


def rows(history: History) -> int:
    return int(history._base.execute("SELECT count(*) FROM results").fetchone()[0])


def test_adding_a_run_twice_keeps_one_copy(history: History) -> None:
    for _ in range(2):
        history.add("a", night())
    assert rows(history) == len(night())


def test_a_resumed_run_replaces_not_reached_results(history: History) -> None:
    history.add("a", [replace(CASE, verdict=Verdict.NOT_REACHED)])
    assert history.cached(CASE.content) is None
    history.add("a", [CASE])
    assert history.cached(CASE.content) is not None


def test_half_failed_run_is_not_added(history: History) -> None:
    def torn() -> Iterator[Record]:
        yield CASE
        raise RuntimeError

    with pytest.raises(RuntimeError):
        history.add("a", torn())
    assert rows(history) == 0


@pytest.mark.parametrize("verdict", [Verdict.REPRODUCED, Verdict.HOLDS, Verdict.LEARNED])
def test_green_and_learned_records_are_served_whole(history: History, verdict: Verdict) -> None:
    ran = record(verdict)
    history.add("a", [ran])
    assert history.cached(ran.content) == replace(ran, cached_from="a")


@pytest.mark.parametrize("verdict", [each for each in Verdict if each.colour not in ("green", "learned")])
def test_other_verdicts_are_not_served(history: History, verdict: Verdict) -> None:
    history.add("a", [replace(CASE, verdict=verdict)])
    assert history.cached(CASE.content) is None


def test_older_green_does_not_hide_a_red(history: History) -> None:
    history.add("a", [CASE])
    history.add("b", [replace(CASE, verdict=Verdict.UNEXPLAINED)])
    assert history.cached(CASE.content) is None


def test_a_green_after_a_red_is_served(history: History) -> None:
    history.add("a", [replace(CASE, verdict=Verdict.UNEXPLAINED)])
    history.add("b", [CASE])
    served = history.cached(CASE.content)
    assert served is not None
    assert served.cached_from == "b"


@pytest.mark.parametrize("verdict", [Verdict.UNAVAILABLE, Verdict.NOT_REACHED])
def test_a_silent_night_does_not_hide_a_green(history: History, verdict: Verdict) -> None:
    history.add("a", [CASE])
    history.add("b", [replace(CASE, verdict=verdict)])
    assert history.cached(CASE.content) is not None


def test_cached_verdict_names_the_executing_run(history: History) -> None:
    history.add("a", [CASE])
    for run in ("b", "c"):
        served = history.cached(CASE.content)
        assert served is not None
        assert served.cached_from == "a"
        history.add(run, [replace(served, run=run)])


def test_a_result_without_content_is_never_served(history: History) -> None:
    history.add("a", [replace(CASE, content="")])
    assert history.cached("") is None


def test_a_cached_verdict_is_found_by_index(history: History) -> None:
    (plan,) = history._base.execute("EXPLAIN QUERY PLAN " + CACHED, ("x", "", "")).fetchall()[:1]
    assert "USING INDEX results_content" in plan[-1]


def test_other_content_is_not_served(history: History) -> None:
    history.add("a", [CASE])
    assert history.cached("other") is None


def test_records_of_a_failure_come_from_all_runs(history: History) -> None:
    history.add("a", [CASE])
    history.add("b", [replace(CASE, run="b")])
    assert history.records_of(CASE.failure) == [CASE, replace(CASE, run="b")]
    assert history.records_of("another") == []


def test_previous_returns_the_last_earlier_verdict(history: History) -> None:
    history.add("a", [CASE])
    history.add("b", [replace(CASE, verdict=Verdict.UNEXPLAINED)])
    history.add("c", [CASE])
    earlier = history.previous("c")[CASE.key]
    assert (earlier.run, earlier.verdict) == ("b", Verdict.UNEXPLAINED)


def test_an_unknown_run_comes_after_all_others(history: History) -> None:
    history.add("a", [CASE])
    assert history.previous("b")[CASE.key].run == "a"


def test_the_first_run_has_nothing_before_it(history: History) -> None:
    history.add("a", [CASE])
    assert history.previous("a") == {}


def test_previous_skips_an_interrupted_run(history: History) -> None:
    history.add("a", [CASE])
    history.add("b", [replace(CASE, verdict=Verdict.NOT_REACHED)])
    assert history.previous("c")[CASE.key].run == "a"


def test_levels_are_those_that_ran(history: History) -> None:
    gpu = record(Verdict.UNAVAILABLE, level=Level.GPU)
    history.add("a", [record(), record(level=Level.CONTRACT), gpu, record(Verdict.UNAVAILABLE, failure="other")])
    assert history.levels() == {"dud-assertion": {Level.CPU, Level.CONTRACT}}


def test_seconds_are_the_median_of_what_ran(history: History) -> None:
    """Results from the cache and of cases that did not run have no time of their own."""
    for run, seconds in (("a", 2.0), ("b", 9.0), ("c", 4.0)):
        history.add(run, [replace(CASE, outcome=replace(CASE.outcome, seconds=seconds))])
    long = replace(CASE, outcome=replace(CASE.outcome, seconds=500.0))
    history.add("d", [replace(long, cached_from="a")])
    history.add("e", [replace(long, verdict=Verdict.UNAVAILABLE)])
    assert history.seconds() == {CASE.key: 4.0}
    assert history.seconds(nights=3) == {CASE.key: 4.0}


def test_added_records_persist_in_the_file(tmp_path: Path) -> None:
    with History(tmp_path / "history.sqlite") as history:
        history.add("a", [CASE])
    with History(tmp_path / "history.sqlite") as history:
        assert history.cached(CASE.content) is not None


def test_reading_works_during_another_write(tmp_path: Path) -> None:
    with History(tmp_path / "history.sqlite") as one, History(tmp_path / "history.sqlite") as other:
        one.add("a", [CASE])
        with one._transaction():
            one._base.execute("DELETE FROM results")
            assert other.cached(CASE.content) is not None


def broken(path: Path) -> None:
    path.write_bytes(b"this is no database, and longer than a header of one hundred bytes. " * 40)


def newer(path: Path) -> None:
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE results (key)")
        base.execute("PRAGMA user_version = 99")
    base.close()


def foreign(path: Path) -> None:
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE recipes (name)")
    base.close()


@pytest.mark.parametrize("make", [broken, newer, foreign])
def test_an_unusable_file_is_kept_and_raises(tmp_path: Path, make: object) -> None:
    path = tmp_path / "history.sqlite"
    make(path)  # type: ignore[operator]
    before = path.read_bytes()
    with pytest.raises(MatrixError, match="the file is kept as it is") as error:
        History(path)
    assert str(path) in str(error.value)
    assert path.read_bytes() == before


def test_a_truncated_file_is_kept_and_raises(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    with History(path) as history:
        history.add("a", night())
    path.write_bytes(path.read_bytes()[: 8 * 4096])
    before = path.read_bytes()
    with pytest.raises(MatrixError, match="the file is kept as it is"), History(path) as history:
        history.add("b", night())
    assert path.read_bytes() == before


def test_a_folder_as_history_file_raises(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="can't be used"):
        History(tmp_path)


def test_pasts_run_oldest_first_up_to_the_run(tmp_path: Path) -> None:
    with History(tmp_path / "history.sqlite") as history:
        for n, verdict in enumerate((Verdict.HOLDS, Verdict.REGRESSED, Verdict.HOLDS, Verdict.VANISHED)):
            history.add(f"night-{n}", [record(verdict)])
        key = record().key

        found = history.pasts("night-2", nights=2)
        assert [(past.run, past.verdict) for past in found[key]] == [
            ("night-1", Verdict.REGRESSED), ("night-2", Verdict.HOLDS),
        ]  # fmt: skip
        assert [past.run for past in history.pasts("not there yet")[key]] == [f"night-{n}" for n in range(4)]
        assert found[key][0].content == record().content


def test_past_result_of_another_run_is_cached(history: History) -> None:
    history.add("a", [CASE])
    history.add("b", [replace(CASE, cached_from="a")])
    assert [past.cached for past in history.pasts("b")[CASE.key]] == [False, True]


def test_last_run_is_the_newest_with_a_result(history: History) -> None:
    for run, verdict, started in (
        ("a", Verdict.HOLDS, "2026-01-30T02:00:00.000Z"),
        ("b", Verdict.REGRESSED, "2026-01-31T02:00:00.000Z"),
        ("c", Verdict.NOT_REACHED, "2026-02-01T02:00:00.000Z"),
    ):
        history.add(run, [replace(CASE, verdict=verdict, started=started)])
    (last,) = history.last_runs()[CASE.failure]
    assert last.to_json() == {
        "level": "cpu",
        "run": "b",
        "started": "2026-01-31T02:00:00.000Z",
        "cell": CASE.cell.id,
        "verdict": "regressed",
    }
