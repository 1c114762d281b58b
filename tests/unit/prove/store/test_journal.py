"""The journal loses no result, counts none twice and reports corrupt lines."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.catalog.codec import encode
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.record import Record, Verdict
from matrix.prove.store import journal as store_journal
from matrix.prove.store.journal import Journal, Journals, JournalState, read
from tests.profiles import tries
from tests.unit.show.samples import MCORES, cell, record

RECORDS = [record(where=cell(mcore=mcore)) for mcore in MCORES[:4]]


def run(folder: Path, records: list[Record], name: str = "a") -> Path:
    """Record the start and the result of cases; return the journal's file."""
    path = folder / f"journal-{name}.jsonl"
    with Journal(path) as journal:
        for each in records:
            journal.started(each.key)
            journal.result(each)
    return path


def unfinished(state: JournalState) -> set[str]:
    """Return the cases that were started and have no result: the process that ran them was lost."""
    return state.started.keys() - state.results.keys()


def test_read_returns_the_written_records(tmp_path: Path) -> None:
    run(tmp_path, RECORDS)
    state = read(tmp_path)
    assert list(state.results.values()) == RECORDS
    assert unfinished(state) == set()


def test_every_line_is_json_with_its_time(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in run(tmp_path, RECORDS).read_text("ascii").splitlines()]
    assert [set(line) - {"at", "crc"} for line in lines[:2]] == [{"started"}, {"result"}]


def test_an_unfinished_case_has_its_start_time(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal-a.jsonl", now=lambda: "2026-01-31T02:00:00.000Z") as journal:
        journal.started("a case")
    state = read(tmp_path)
    assert unfinished(state) == {"a case"}
    assert state.started["a case"] == state.began == state.ended == "2026-01-31T02:00:00.000Z"


def test_each_call_writes_its_line_at_once(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal-a.jsonl") as journal:
        journal.started(RECORDS[0].key)
        assert unfinished(read(tmp_path)) == {RECORDS[0].key}
        journal.result(RECORDS[0])
        assert list(read(tmp_path).results) == [RECORDS[0].key]


def test_a_case_s_first_result_wins_across_files(tmp_path: Path) -> None:
    run(tmp_path, [record(Verdict.UNEXPLAINED)], "b")
    run(tmp_path, [record(Verdict.HOLDS)], "a")
    run(tmp_path, [record(Verdict.VANISHED)], "c")
    assert [each.verdict for each in read(tmp_path).results.values()] == [Verdict.HOLDS]


def test_resumed_run_gives_lost_case_a_result(tmp_path: Path) -> None:
    lost = record(Verdict.NOT_REACHED)
    run(tmp_path, [lost], "a")
    state = read(tmp_path)
    assert not state.results
    assert (state.lost, unfinished(state)) == ({lost.key: lost}, {lost.key})
    run(tmp_path, [record()], "b")
    state = read(tmp_path)
    assert (state.results, state.lost) == ({lost.key: record()}, {})


def test_a_restarted_case_drops_its_old_loss(tmp_path: Path) -> None:
    run(tmp_path, [record(Verdict.NOT_REACHED)], "a")
    with Journal(tmp_path / "journal-b.jsonl") as journal:
        journal.started(record().key)
    assert read(tmp_path).lost == {}


def test_a_folder_without_journals_has_no_results(tmp_path: Path) -> None:
    assert (read(tmp_path).results, read(tmp_path).started) == ({}, {})


@tries(200)
@given(st.data())
def test_a_resumed_run_completes_a_truncated_journal(data: st.DataObject) -> None:
    """Cut at any byte, the journal holds a prefix of the results; each case then has exactly one result."""
    with TemporaryDirectory() as folder:
        path = run(Path(folder), RECORDS)
        whole = path.read_bytes()
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
        state = read(Path(folder))
        done = list(state.results)
        assert done == [each.key for each in RECORDS][: len(done)]
        assert len(unfinished(state)) <= 1

        again = [each for each in RECORDS if each.key not in state.results]
        run(Path(folder), again, "b")
        after = read(Path(folder))
        assert sorted([*done, *(each.key for each in again)]) == sorted(after.results)
        assert len(after.results) == len(RECORDS)
        assert unfinished(after) == set()


@tries(200)
@given(st.data())
def test_a_changed_byte_is_detected(data: st.DataObject) -> None:
    """In the last line it makes that line torn, so the line is ignored; elsewhere the error names the line."""
    with TemporaryDirectory() as folder:
        path = run(Path(folder), RECORDS[:2])
        whole = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(whole) - 2) | st.sampled_from(newlines(bytes(whole))))
        line = whole[:place].count(b"\n") + 1
        whole[place] = data.draw(st.integers(0, 255).filter(lambda byte: byte != whole[place]))
        path.write_bytes(whole)
        if line == 4 and whole[place] != ord("\n"):
            assert list(read(Path(folder)).results) == [RECORDS[0].key]
        else:
            with pytest.raises(MatrixError, match=rf"journal-a.jsonl:{line}: a corrupt line") as error:
                read(Path(folder))
            assert "resume" in str(error.value)


def newlines(whole: bytes) -> list[int]:
    """Return the offsets at which the lines before the last one end."""
    return [place for place, byte in enumerate(whole[:-1]) if byte == ord("\n")]


@pytest.mark.parametrize(
    "torn", [b'{"at":"2026', b"\0" * 512, b"\xff\xfe", b'{"at":"x","started":"y","crc":"00000000"}\n']
)
def test_a_torn_last_line_is_ignored(tmp_path: Path, torn: bytes) -> None:
    path = run(tmp_path, RECORDS)
    path.write_bytes(path.read_bytes() + torn)
    assert list(read(tmp_path).results.values()) == RECORDS


def test_a_line_of_a_newer_version_raises(tmp_path: Path) -> None:
    path = run(tmp_path, RECORDS[:1])
    with Journal(tmp_path / "journal-b.jsonl") as journal:
        journal._append("heartbeat", 1)
    with pytest.raises(MatrixError, match=r"journal-b.jsonl:1: a whole line that this version can't read"):
        read(tmp_path)
    assert path.exists()


def test_sealed_line_with_an_invalid_version_raises(tmp_path: Path) -> None:
    result = encode(RECORDS[0])
    result["planned"]["cell"]["stack"]["megatron-core"] = "x"
    with Journal(tmp_path / "journal-a.jsonl") as journal:
        journal._append("result", result)
    with pytest.raises(MatrixError, match=r"journal-a.jsonl:1: a whole line that this version can't read"):
        read(tmp_path)


def test_an_existing_journal_file_is_refused(tmp_path: Path) -> None:
    run(tmp_path, RECORDS)
    with pytest.raises(MatrixError, match="can't be written"):
        Journal(tmp_path / "journal-a.jsonl")


def test_journal_names_sort_by_opening_time(tmp_path: Path) -> None:
    for hour in ("02", "13"):
        Journal.new(tmp_path, now=lambda hour=hour: f"2026-01-31T{hour}:00:00.000Z").close()  # type: ignore[misc]
    names = sorted(path.name for path in tmp_path.glob("journal-*.jsonl"))
    assert [name[:25] for name in names] == ["journal-20260131T02000000", "journal-20260131T13000000"]


def test_an_unwritable_folder_raises_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MatrixError, match="can't be written"):
        Journal(tmp_path / "file" / "journal-a.jsonl")


def test_failed_write_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write

    def full(file: int, data: bytes) -> int:
        if len(data) < 100:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data[: len(data) - 50])

    with Journal(tmp_path / "journal-a.jsonl") as journal:
        journal.started(RECORDS[0].key)
        monkeypatch.setattr("os.write", full)
        with pytest.raises(MatrixError, match="No space left on device"):
            journal.result(RECORDS[0])
        monkeypatch.undo()
        journal.result(RECORDS[0])  # the disk has space again
    assert list(read(tmp_path).results.values()) == RECORDS[:1]


def test_ctrl_c_during_write_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(file: int) -> None:
        raise KeyboardInterrupt

    with Journal(tmp_path / "journal-a.jsonl") as journal:
        journal.started(RECORDS[0].key)
        monkeypatch.setattr("os.fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            journal.result(RECORDS[0])
        monkeypatch.undo()
        journal.started(RECORDS[1].key)
    assert unfinished(read(tmp_path)) == {RECORDS[0].key, RECORDS[1].key}


WRITER = """
    import resource, sys
    from pathlib import Path
    from matrix.ground.errors import MatrixError
    from matrix.prove.store.journal import Journal
    from tests.unit.show.samples import cell, record

    folder, limit = Path(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    with Journal.new(folder) as journal:
        for number in range(200):
            case = record(where=cell(mcore=f"0.8.{number}"))
            journal.started(case.key)
            journal.result(case)
            print(number, flush=True)
"""


def writer(folder: Path, limit: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(folder), str(limit)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_a_full_disk_raises_and_leaves_whole_lines(tmp_path: Path) -> None:
    """The limit on the file's size stands in for the full disk."""
    process = writer(tmp_path, 20_000)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"MatrixError" in errors
    assert b"File too large" in errors
    (path,) = tmp_path.glob("journal-*.jsonl")
    assert path.read_bytes().endswith(b"}\n")
    assert read(tmp_path).results


@pytest.mark.parametrize("lines", [1, 7, 20])
def test_kill_9_loses_no_recorded_result(tmp_path: Path, lines: int) -> None:
    with writer(tmp_path, 1 << 30) as process:
        assert process.stdout is not None
        for _ in range(lines):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    state = read(tmp_path)
    assert len(state.results) >= lines
    assert len(unfinished(state)) <= 1


def test_threads_of_one_process_write_whole_lines(tmp_path: Path) -> None:
    cases = [[record(where=cell(mcore=f"{major}.{minor}.0")) for minor in range(20)] for major in range(4)]
    with Journal(tmp_path / "journal-a.jsonl") as journal:
        threads = [threading.Thread(target=lambda own=own: [journal.result(each) for each in own]) for own in cases]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(read(tmp_path).results) == 80


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(RECORDS), st.booleans()), max_size=12))
def test_growing_journals_read_as_by_a_new_reader(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[str, Record, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("run")
    journals = Journals(folder)
    with Journal(folder / "journal-a.jsonl") as a, Journal(folder / "journal-b.jsonl") as b:
        for name, each, is_start in lines:
            journal = {"a": a, "b": b}[name]
            journal.started(each.key) if is_start else journal.result(each)
            assert journals.read() == read(folder)


def test_each_line_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journals, opened = Journals(tmp_path), list[bytes]()
    unseal = store_journal._opened

    def counted(line: bytes) -> dict[str, object] | None:
        opened.append(line)
        return unseal(line)

    monkeypatch.setattr(store_journal, "_opened", counted)
    for count, each in enumerate(RECORDS, 1):
        run(tmp_path, [each], str(count))
        for _ in range(2):
            assert (len(journals.read().results), len(opened)) == (count, 2 * count)


def test_torn_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    """On a disk that several machines share, the end of a line may be seen late."""
    run(tmp_path, RECORDS[:2])
    path = tmp_path / "journal-a.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    journals = Journals(tmp_path)
    assert len(journals.read().results) == 1
    path.write_bytes(whole)
    assert len(journals.read().results) == 2
