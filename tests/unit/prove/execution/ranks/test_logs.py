"""The log of a rank, limited in size."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.prove.execution.ranks.logs import Log, end_of

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
