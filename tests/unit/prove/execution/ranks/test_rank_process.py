"""What a rank reports is text of another process: whatever it is, the outcome is one that can be judged and stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from matrix.ground.catalog.codec import decode, encode
from matrix.ground.catalog.failure import Expectation
from matrix.ground.verdicts.blame import classify
from matrix.ground.verdicts.judge import judge
from matrix.ground.verdicts.outcome import Outcome, RankEnd
from matrix.prove.execution.ranks.rank_process import Log, end_of, parse_report
from tests.profiles import tries
from tests.unit.catalogs import failure

ENTRY = failure()
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))


def almost(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return objects in which any field may be something else."""
    return st.fixed_dictionaries({name: st.one_of(good, good, SCALARS) for name, good in fields.items()})


FRAMES = almost(file=st.text(max_size=9), line=st.integers(), function=st.text(max_size=9))
CHAINS = st.lists(almost(type=st.just("TypeError"), message=st.text(), frames=st.lists(FRAMES, max_size=2)), max_size=2)
REPORTS = st.one_of(almost(raised=CHAINS), almost(value=JSON, used=JSON), almost(lacks=st.text()), JSON)


@tries(50)
@given(content=REPORTS)
@example(content={"raised": [{"type": 5, "message": None}]})
def test_any_report_gives_an_outcome(content: Any) -> None:
    report = parse_report(json.dumps(content).encode())
    if report is None:
        return
    end = RankEnd(0, 0, report.chain, report.returned, value=report.value, used=report.used)
    outcome = classify([end], logs={0: ""}, traces={}, deadline_s=1.0, timed_out=False, oom_kills=0)
    judge(ENTRY, Expectation.BROKEN, outcome, (ENTRY,))
    stored = json.loads(json.dumps(encode(outcome)))
    assert json.dumps(encode(decode(Outcome, stored))) == json.dumps(stored)


HEAD, TAIL = 10, 7


def written(folder: Path, chunks: list[bytes]) -> bytes:
    log = Log(folder / "log", HEAD, TAIL)
    for chunk in chunks:
        log.write(chunk)
    log.close()
    return log.path.read_bytes()


@given(st.lists(st.binary(max_size=40)))
def test_log_is_complete_or_head_and_tail(tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes]) -> None:
    everything = b"".join(chunks)
    left_out = len(everything) - HEAD - TAIL
    expected = everything
    if left_out > 0:
        expected = everything[:HEAD] + b"\n[... %d bytes left out ...]\n" % left_out + everything[-TAIL:]
    assert written(tmp_path_factory.mktemp("log"), chunks) == expected


def test_lines_of_the_head_are_written_at_once(tmp_path: Path) -> None:
    """A part of a line may be that of a secret."""
    log = Log(tmp_path / "log", HEAD, TAIL)
    log.write(b"hello\nHF_")
    assert log.path.read_bytes() == b"hello\n"
    log.close()
    assert log.path.read_bytes() == b"hello\nHF_"


def test_memory_holds_at_most_two_tails(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", HEAD, TAIL)
    for _ in range(1000):
        log.write(b"abc")
        assert len(log._tail) <= 2 * TAIL
    log.close()


def test_second_close_does_nothing(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", HEAD, TAIL)
    log.write(b"x" * 12)
    log.close()
    log.close()
    assert log.path.read_bytes() == b"x" * 12


def test_end_of_replaces_invalid_utf_8(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"start\xff\xfeend")
    assert end_of(tmp_path / "log", 5) == "\ufffd\ufffdend"
