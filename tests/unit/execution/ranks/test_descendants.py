"""The processes below a process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.execution.ranks.descendants import Picture, end_below, look


def picture(known: Mapping[int, int], *, torn: bool = False) -> Picture:
    return Picture(known, frozenset(known), torn)


@given(st.dictionaries(st.integers(1, 30), st.integers(1, 30)))
def test_below_are_those_whose_way_up_leads_to_the_root(known: dict[int, int]) -> None:
    def leads_to_root(pid: int) -> bool:
        seen = {pid}
        while (pid := known.get(pid, 0)) not in seen and pid:
            if pid == 1:
                return True
            seen.add(pid)
        return False

    assert picture(known).below(1) == {pid for pid in known if pid != 1 and leads_to_root(pid)}


def test_what_is_below_a_zombie_is_found_the_zombie_is_not() -> None:
    assert Picture({1: 0, 2: 1, 3: 2}, frozenset({1, 3})).below(1) == {3}


NOBODY = 2**22 + 1  # above any pid there is


def write(proc: Path, pid: int, stat: bytes) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_bytes(stat)


def test_a_command_with_parentheses_and_spaces_does_not_confuse(tmp_path: Path) -> None:
    write(tmp_path, 42, b"42 (a) R 1 (b\n) S 0 42 42 0 -1")
    assert look(tmp_path) == Picture({42: 0}, frozenset({42}))


def test_zombies_are_seen_but_do_not_run(tmp_path: Path) -> None:
    write(tmp_path, 42, b"42 (x) Z 0 1 1")
    assert look(tmp_path) == Picture({42: 0}, frozenset())


def test_what_is_no_process_is_not_in_the_picture(tmp_path: Path) -> None:
    (tmp_path / "44").mkdir()  # gone meanwhile
    (tmp_path / "meminfo").touch()
    assert look(tmp_path) == Picture({}, frozenset())


def test_a_picture_with_a_child_but_not_its_parent_is_torn(tmp_path: Path) -> None:
    write(tmp_path, 42, b"42 (x) S %d 1 1" % NOBODY)
    assert look(tmp_path).torn


def test_a_parent_that_is_only_not_shown_tears_nothing(tmp_path: Path) -> None:
    write(tmp_path, 42, b"42 (x) S %d 1 1" % os.getpid())
    assert not look(tmp_path).torn


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


def looking_at(*pids: int) -> Callable[[], Picture]:
    """Look at the real processes, as far as they are children of this one with these pids."""

    def see() -> Picture:
        seen = look()
        return picture({pid: os.getpid() for pid in pids if pid in seen.running})

    return see


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
    views = iter([picture({first.pid: os.getpid()}), picture({second.pid: os.getpid()}), picture({})])
    assert end_below(os.getpid(), leave_s=0, look=lambda: next(views)) == 2
    assert second.wait() == -9


def test_a_torn_picture_is_not_believed(sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = sleeper(3600)
    views = iter([picture({}, torn=True), picture({process.pid: os.getpid()}), picture({})])
    assert end_below(os.getpid(), leave_s=0, look=lambda: next(views)) == 1


def test_pictures_that_stay_torn_do_not_hold_it_for_ever() -> None:
    assert end_below(os.getpid(), look=lambda: picture({}, torn=True)) == 0


def test_one_that_cannot_be_killed_does_not_hold_it_for_ever() -> None:
    assert end_below(os.getpid(), leave_s=0, kill_s=0.05, look=lambda: picture({NOBODY: os.getpid()})) == 1
