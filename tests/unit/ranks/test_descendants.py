"""The processes below a process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ranks.descendants import below, end_below, parents


@given(st.dictionaries(st.integers(1, 30), st.integers(1, 30)))
def test_below_are_those_whose_way_up_leads_to_the_root(known: dict[int, int]) -> None:
    def leads_to_root(pid: int) -> bool:
        seen = {pid}
        while (pid := known.get(pid, 0)) not in seen and pid:
            if pid == 1:
                return True
            seen.add(pid)
        return False

    assert below(1, known) == {pid for pid in known if pid != 1 and leads_to_root(pid)}


def test_a_command_with_parentheses_and_spaces_does_not_confuse(tmp_path: Path) -> None:
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "stat").write_bytes(b"42 (a) R 1 (b\n) S 7 42 42 0 -1")
    assert parents(tmp_path) == {42: 7}


def test_zombies_and_what_is_no_process_are_left_out(tmp_path: Path) -> None:
    for pid, state in (("42", b"Z"), ("43", b"S")):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "stat").write_bytes(b"%s (x) %s 7 1 1" % (pid.encode(), state))
    (tmp_path / "44").mkdir()  # gone meanwhile
    (tmp_path / "meminfo").touch()
    assert parents(tmp_path) == {43: 7}


@pytest.fixture
def sleeper() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started = []

    def start(seconds: float) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sleep", str(seconds)]))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def looking_at(*pids: int) -> Callable[[], Mapping[int, int]]:
    """Look at the real processes, as far as they are children of this one with these pids."""
    return lambda: {pid: parent for pid, parent in parents().items() if pid in pids and parent == os.getpid()}


def test_a_descendant_is_killed_and_counted(sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = sleeper(3600)
    assert end_below(os.getpid(), look=looking_at(process.pid)) == 1
    assert process.wait() == -9


def test_one_that_ends_by_itself_in_time_is_not_counted(sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = sleeper(0.2)
    assert end_below(os.getpid(), leave_s=30.0, look=looking_at(process.pid)) == 0
    assert process.wait() == 0


def test_those_born_meanwhile_are_killed_too(sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    first, second = sleeper(3600), sleeper(3600)
    views = iter([{first.pid: os.getpid()}, {second.pid: os.getpid()}, {}])
    assert end_below(os.getpid(), leave_s=0, look=lambda: next(views)) == 2
    assert second.wait() == -9


def test_one_that_cannot_be_killed_does_not_hold_it_for_ever() -> None:
    immortal = {2**22 + 1: os.getpid()}  # above any pid there is: no signal reaches it
    assert end_below(os.getpid(), leave_s=0, kill_s=0.05, look=lambda: immortal) == 1
