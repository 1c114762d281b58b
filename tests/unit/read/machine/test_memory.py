"""OOM kill counts and cgroup limits."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from matrix.read.machine.hardware import allowed, oom_kills, rise


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_vmstat_is_read(tmp_path: Path) -> None:
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


def test_group_of_a_container_is_the_root(tmp_path: Path) -> None:
    """Its path on the host does not exist in the container, which sees its own group there."""
    write(tmp_path / "proc/self/cgroup", "4:memory:/libpod/4711\n")
    write(tmp_path / "sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\noom_kill 2\n")
    assert list(oom_kills(tmp_path).values()) == [2]


def test_no_source_returns_no_count(tmp_path: Path) -> None:
    assert oom_kills(tmp_path) == {}


def test_kill_of_another_group_is_no_rise(tmp_path: Path) -> None:
    """The kernel counts a kill for the machine, and in the group of the process that it kills."""
    write(tmp_path / "proc/self/cgroup", "0::/user.slice\n")
    counts = []
    for machine, own, group in ((3, 0, 0), (4, 0, 0), (5, 1, 0), (6, 1, 1)):
        write(tmp_path / "proc/vmstat", f"oom_kill {machine}\n")
        write(tmp_path / "sys/fs/cgroup/user.slice/memory.events", f"oom_kill {own}\n")
        write(tmp_path / "group/memory.events", f"oom_kill {group}\n")
        counts.append((oom_kills(tmp_path), oom_kills(tmp_path, str(tmp_path / "group"))))
    assert [(rise(*own), rise(*group)) for own, group in (zip(*pair, strict=True) for pair in pairwise(counts))] == [
        (0, 0),
        (1, 0),
        (0, 1),
    ]


def test_machine_counts_where_no_group_does(tmp_path: Path) -> None:
    write(tmp_path / "proc/vmstat", "oom_kill 3\n")
    before = oom_kills(tmp_path, str(tmp_path / "missing"))
    write(tmp_path / "proc/vmstat", "oom_kill 4\n")
    assert rise(before, oom_kills(tmp_path, str(tmp_path / "missing"))) == 1


def test_rise_ignores_new_sources() -> None:
    assert rise({}, {"a": 4}) == 0


def test_rise_without_sources_is_0() -> None:
    assert rise({}, {}) == 0


def test_allowed_is_the_smallest_limit_of_the_parents(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/user.slice/job\n")
    write(tmp_path / "sys/fs/cgroup/user.slice/memory.max", "4096\n")
    write(tmp_path / "sys/fs/cgroup/user.slice/job/memory.max", "max\n")
    assert allowed(9000, tmp_path) == 4096


def test_allowed_in_a_container_reads_the_root(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "4:memory:/docker/ab12\n")
    write(tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes", "4096\n")
    assert allowed(9000, tmp_path) == 4096


def test_limit_above_the_memory_is_none(tmp_path: Path) -> None:
    assert allowed(9000, tmp_path) is None
    write(tmp_path / "proc/self/cgroup", "4:memory:/\n")
    write(tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert allowed(9000, tmp_path) is None
