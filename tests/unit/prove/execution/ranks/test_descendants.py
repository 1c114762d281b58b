"""Finding and ending the descendants of a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.prove.execution.ranks.descendants import Picture, end_below, look


def picture(known: Mapping[int, int], *, torn: bool = False) -> Picture:
    return Picture(known, frozenset(known), torn)


@given(st.dictionaries(st.integers(1, 30), st.integers(1, 30)))
def test_below_returns_all_descendants(known: dict[int, int]) -> None:
    def leads_to_root(pid: int) -> bool:
        seen = {pid}
        while (pid := known.get(pid, 0)) not in seen and pid:
            if pid == 1:
                return True
            seen.add(pid)
        return False

    assert picture(known).below(1) == {pid for pid in known if pid != 1 and leads_to_root(pid)}


def test_below_includes_children_of_zombies_only() -> None:
    assert Picture({1: 0, 2: 1, 3: 2}, frozenset({1, 3})).below(1) == {3}


NOBODY = 2**22 + 1  # above the largest pid


def write(proc: Path, pid: int, stat: bytes) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_bytes(stat)


def test_command_with_parentheses_is_parsed(tmp_path: Path) -> None:
    write(tmp_path, 42, b"42 (a) R 1 (b\n) S 0 42 42 0 -1")
    assert look(tmp_path) == Picture({42: 0}, frozenset({42}))


def test_zombies_are_listed_as_not_running(tmp_path: Path) -> None:
    write(tmp_path, 42, b"42 (x) Z 0 1 1")
    assert look(tmp_path) == Picture({42: 0}, frozenset())


def test_look_skips_files_that_are_no_process(tmp_path: Path) -> None:
    (tmp_path / "44").mkdir()  # ended meanwhile
    (tmp_path / "meminfo").touch()
    assert look(tmp_path) == Picture({}, frozenset())


def test_missing_parent_makes_the_picture_torn(tmp_path: Path) -> None:
    write(tmp_path, 42, b"42 (x) S %d 1 1" % NOBODY)
    assert look(tmp_path).torn


def test_hidden_parent_does_not_make_it_torn(tmp_path: Path) -> None:
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
    """Return a `look` that sees only the children of this process with these pids."""

    def see() -> Picture:
        seen = look()
        return picture({pid: os.getpid() for pid in pids if pid in seen.running})

    return see


def test_end_below_kills_and_counts(sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = sleeper(3600)
    assert end_below(os.getpid(), look=looking_at(process.pid)) == 1
    assert process.wait() == -9


def test_resource_tracker_ends_by_itself() -> None:
    """It ends when the last process that holds its pipe has ended. Killed before, it leaves semaphores in /dev/shm."""
    ours, theirs = os.pipe()
    command = [sys.executable, "-c", "import sys; sys.stdin.read()  # multiprocessing.resource_tracker"]
    tracker = subprocess.Popen(command, stdin=ours)
    holder = subprocess.Popen(["sleep", "3600"], stdout=theirs)
    os.close(ours)
    os.close(theirs)
    with tracker, holder:
        assert end_below(os.getpid(), leave_s=0, kill_s=30.0, look=looking_at(tracker.pid, holder.pid)) == 1
        assert (tracker.wait(), holder.wait()) == (0, -9)


def test_end_below_does_not_count_processes_that_end(sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = sleeper(0.2)
    assert end_below(os.getpid(), leave_s=30.0, look=looking_at(process.pid)) == 0
    assert process.wait() == 0


def test_end_below_kills_new_descendants(sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    first, second = sleeper(3600), sleeper(3600)
    views = iter([picture({first.pid: os.getpid()}), picture({second.pid: os.getpid()}), picture({})])
    assert end_below(os.getpid(), leave_s=0, look=lambda: next(views)) == 2
    assert second.wait() == -9


def test_end_below_repeats_a_torn_picture(sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = sleeper(3600)
    views = iter([picture({}, torn=True), picture({process.pid: os.getpid()}), picture({})])
    assert end_below(os.getpid(), leave_s=0, look=lambda: next(views)) == 1


def test_end_below_ends_with_only_torn_pictures() -> None:
    assert end_below(os.getpid(), look=lambda: picture({}, torn=True)) == 0


def test_end_below_gives_up_on_an_unkillable_process() -> None:
    assert end_below(os.getpid(), leave_s=0, kill_s=0.05, look=lambda: picture({NOBODY: os.getpid()})) == 1


def test_end_below_spares_those_named(sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    child = sleeper(60.0)
    view = picture({child.pid: os.getpid()})
    assert end_below(os.getpid(), leave_s=0, look=lambda: view, spared={child.pid}) == 0
    assert child.poll() is None
