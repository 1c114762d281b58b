"""Limits are set before the body runs; otherwise it does not run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from matrix.ground.catalog.failure import MIB, Limits
from matrix.ground.catalog.schema import Size
from matrix.ground.verdicts.outcome import OutcomeKind
from matrix.kit.rank import LackError
from matrix.prove.execution.ranks import supervisor
from matrix.prove.execution.ranks.rank_spec import RankJob
from matrix.prove.execution.ranks.supervisor import Supervisor

MakeJob = Callable[..., RankJob]
PARENT = supervisor.parent


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_body_does_not_run_without_its_limit(supervisor: Supervisor, job: MakeJob, fresh: bool) -> None:
    """The kernel rejects a limit larger than a long: the job is unavailable and the body writes nothing."""
    outcome = supervisor.run(job("leave_a_mark", fresh=fresh, limits=Limits(address_space=Size(2**70))))
    assert (outcome.kind, "RLIMIT_AS" in outcome.reason) == (OutcomeKind.UNAVAILABLE, True)
    assert [Path(end.log).read_text() for end in outcome.ranks] == ["", ""]


def test_lack_error_in_a_body_is_unavailable(supervisor: Supervisor, job: MakeJob, fresh: bool) -> None:
    """The waiting peer is stopped."""
    outcome = supervisor.run(job("lack_beside_a_waiting_peer", fresh=fresh))
    assert (outcome.kind, outcome.reason) == (OutcomeKind.UNAVAILABLE, "needs a CUDA device")


def test_job_without_memory_cgroup_is_unavailable(
    supervisor: Supervisor, job: MakeJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No rank is started."""
    monkeypatch.setattr("matrix.prove.execution.ranks.supervisor.parent", lambda _: PARENT(tmp_path))
    outcome = supervisor.run(job("leave_a_mark", limits=Limits(memory=Size(64 * MIB))))
    assert (outcome.kind, outcome.ranks) == (OutcomeKind.UNAVAILABLE, ())
    assert "no memory cgroup is usable" in outcome.reason


def test_v1_parent_is_the_own_cgroup(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "9:name=systemd:/\n4:memory:/a/b\n0::/\n")
    (tmp_path / "sys/fs/cgroup/memory/a/b").mkdir(parents=True)
    assert supervisor.parent(tmp_path) == tmp_path / "sys/fs/cgroup/memory/a/b"


def test_v1_parent_in_a_container_is_the_root(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "4:memory:/docker/4711\n")
    assert supervisor.parent(tmp_path) == tmp_path / "sys/fs/cgroup/memory"


def test_v2_parent_is_the_nearest_that_delegates_memory(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/user.slice/session.scope\n")
    mounted = tmp_path / "sys/fs/cgroup"
    write(mounted / "cgroup.subtree_control", "cpu memory\n")
    write(mounted / "user.slice/cgroup.subtree_control", "cpu memory pids\n")
    write(mounted / "user.slice/session.scope/cgroup.subtree_control", "\n")
    assert supervisor.parent(tmp_path) == mounted / "user.slice"


def test_no_delegated_memory_raises_lack_error(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/\n")
    write(tmp_path / "sys/fs/cgroup/cgroup.subtree_control", "cpu pids\n")
    with pytest.raises(LackError, match="no memory cgroup"):
        supervisor.parent(tmp_path)


def test_limit_above_available_memory_raises_lack_error(tmp_path: Path) -> None:
    write(tmp_path / "proc/meminfo", "MemTotal:  9000 kB\nMemAvailable:    2048 kB\n")
    with (
        pytest.raises(LackError, match="needs 3 MiB of memory for its limit; 2 MiB are available"),
        supervisor.memory_group(3 * MIB, tmp_path),
    ):
        pass


@pytest.mark.parametrize(("limit", "made"), [("3145728", True), ("4194304", False), ("max", False)])
def test_container_with_the_limit_needs_no_group(tmp_path: Path, limit: str, made: bool) -> None:
    """Its cgroup file system is read-only, and it was started with the limit of its cases."""
    write(tmp_path / "proc/self/cgroup", "0::/\n")
    write(tmp_path / "sys/fs/cgroup/memory.max", f"{limit}\n")
    try:
        with supervisor.memory_group(3 * MIB, tmp_path) as folder:
            found = folder == ""
    except LackError:
        found = False
    assert found is made


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["memory.limit_in_bytes"], {"memory.limit_in_bytes": "7"}),
        (
            ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"],
            {"memory.limit_in_bytes": "7", "memory.memsw.limit_in_bytes": "7"},
        ),
        (["memory.max", "memory.swap.max"], {"memory.max": "7", "memory.swap.max": "0"}),
    ],
    ids=["v1", "v1 with swap", "v2"],
)
def test_limit_includes_swap(tmp_path: Path, files: list[str], expected: dict[str, str]) -> None:
    for name in files:
        write(tmp_path / name, "max")
    supervisor.limit(tmp_path, 7)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == expected


def test_job_above_its_memory_limit_is_killed(supervisor: Supervisor, job: MakeJob) -> None:
    """The kernel kills the rank; without a cgroup the job is unavailable."""
    outcome = supervisor.run(job("fill_memory", world_size=1, limits=Limits(memory=Size(128 * MIB))))
    if outcome.kind is OutcomeKind.UNAVAILABLE:
        assert "memory cgroup" in outcome.reason
    else:
        assert (outcome.kind, outcome.signal) == (OutcomeKind.OUT_OF_MEMORY, "SIGKILL")


def test_rank_has_its_own_shm(supervisor: Supervisor, job: MakeJob) -> None:
    """It has the configured size and is private; if it can't be mounted, the job is unavailable."""
    outcome = supervisor.run(job("size_of_shm", world_size=1, limits=Limits(shm=Size(MIB))))
    if outcome.kind is OutcomeKind.UNAVAILABLE:
        assert "/dev/shm" in outcome.reason
    else:
        assert (outcome.kind, outcome.ranks[0].value) == (OutcomeKind.PASSED, MIB)
    assert not Path("/dev/shm/rank-was-here").exists()
