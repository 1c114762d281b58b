"""The kernel's count of processes killed for memory."""

from __future__ import annotations

from pathlib import Path

from matrix.ranks.memory import oom_kills, rise


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_machines_count_is_read(tmp_path: Path) -> None:
    write(tmp_path / "proc/vmstat", "nr_free_pages 1\noom_kill 3\noom_kill_x 9\n")
    assert list(oom_kills(tmp_path).values()) == [3]


def test_cgroup_v1_is_read(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "9:name=systemd:/\n4:memory:/a/b\n3:cpuset:/\n")
    write(tmp_path / "sys/fs/cgroup/memory/a/b/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert list(oom_kills(tmp_path).values()) == [2]


def test_cgroup_v2_is_read(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/user.slice\n")
    write(tmp_path / "sys/fs/cgroup/user.slice/memory.events", "low 0\noom 1\noom_kill 5\noom_group_kill 0\n")
    assert list(oom_kills(tmp_path).values()) == [5]


def test_a_machine_that_tells_nothing_counts_nothing(tmp_path: Path) -> None:
    assert oom_kills(tmp_path) == {}


def test_the_source_that_rose_most_counts() -> None:
    assert rise({"a": 1, "b": 5}, {"a": 1, "b": 7}) == 2


def test_a_source_that_was_not_there_before_tells_no_rise() -> None:
    assert rise({}, {"a": 4}) == 0


def test_no_source_no_rise() -> None:
    assert rise({}, {}) == 0
