"""A limit is set before the body runs, or the body does not run."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from matrix.catalog.limits import MIB, Limits
from matrix.catalog.schema import Size
from matrix.errors import MatrixError
from matrix.execution.ranks import cgroup
from matrix.execution.ranks.job import RankJob
from matrix.execution.ranks.limits import impose
from matrix.execution.ranks.supervisor import Supervisor
from matrix.kit.rank import LackError
from matrix.verdicts.outcome import OutcomeKind

MakeJob = Callable[..., RankJob]
PARENT = cgroup.parent
NOTHING: dict[str, Any] = {"address_space": None, "shm": None, "memory_group": ""}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("name", ["address_space", "memory", "shm"])
def test_a_limit_without_a_size_is_refused(name: str) -> None:
    with pytest.raises(MatrixError, match=f"{name} 0"):
        Limits(**{name: Size(0)})


def test_without_a_limit_nothing_is_set() -> None:
    impose(NOTHING, set_limit=lambda *_: pytest.fail("set"), mount_shm=lambda _: pytest.fail("mounted"))


def test_the_cap_on_the_address_space_is_soft_and_hard() -> None:
    """A body can't lift it again."""
    seen: list[object] = []
    impose({**NOTHING, "address_space": 5}, set_limit=lambda *given: seen.append(given))
    assert seen == [(resource.RLIMIT_AS, (5, 5))]


def refuse(*_: object) -> None:
    raise PermissionError(1, "not here")


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ({"address_space": 5}, "RLIMIT_AS"),
        ({"shm": 5}, "/dev/shm"),
        ({"memory_group": "/proc/no such group"}, "memory cgroup"),
    ],
)
def test_what_cannot_be_limited_is_lacking(order: dict[str, Any], said: str) -> None:
    with pytest.raises(LackError, match=said):
        impose({**NOTHING, **order}, set_limit=refuse, mount_shm=refuse)


def test_a_body_without_its_cap_never_runs(supervisor: Supervisor, job: MakeJob, fresh: bool) -> None:
    """A cap that the kernel refuses (more than a long holds) makes the job unavailable; the body leaves no mark."""
    outcome = supervisor.run(job("leave_a_mark", fresh=fresh, limits=Limits(address_space=Size(2**70))))
    assert (outcome.kind, "RLIMIT_AS" in outcome.reason) == (OutcomeKind.UNAVAILABLE, True)
    assert [Path(end.log).read_text() for end in outcome.ranks] == ["", ""]


def test_a_body_that_lacks_something_is_unavailable(supervisor: Supervisor, job: MakeJob, fresh: bool) -> None:
    """Only a body knows what upstream needs; the peer that waits for it is ended."""
    outcome = supervisor.run(job("lack_beside_a_waiting_peer", fresh=fresh))
    assert (outcome.kind, outcome.reason) == (OutcomeKind.UNAVAILABLE, "needs a CUDA device")


def test_a_job_without_its_memory_group_never_runs(
    supervisor: Supervisor, job: MakeJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a machine that shows no memory cgroup the job is unavailable, and no rank is started."""
    monkeypatch.setattr(cgroup, "parent", lambda _: PARENT(tmp_path))
    outcome = supervisor.run(job("leave_a_mark", limits=Limits(memory=Size(64 * MIB))))
    assert (outcome.kind, outcome.ranks) == (OutcomeKind.UNAVAILABLE, ())
    assert "no memory cgroup is in reach" in outcome.reason


def test_a_group_is_made_below_ones_own_in_v1(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "9:name=systemd:/\n4:memory:/a/b\n0::/\n")
    (tmp_path / "sys/fs/cgroup/memory/a/b").mkdir(parents=True)
    assert cgroup.parent(tmp_path) == tmp_path / "sys/fs/cgroup/memory/a/b"


def test_a_container_that_sees_its_own_group_as_the_root_uses_that(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "4:memory:/docker/4711\n")
    assert cgroup.parent(tmp_path) == tmp_path / "sys/fs/cgroup/memory"


def test_a_group_is_made_below_the_nearest_that_hands_memory_on_in_v2(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/user.slice/session.scope\n")
    mounted = tmp_path / "sys/fs/cgroup"
    write(mounted / "cgroup.subtree_control", "cpu memory\n")
    write(mounted / "user.slice/cgroup.subtree_control", "cpu memory pids\n")
    write(mounted / "user.slice/session.scope/cgroup.subtree_control", "\n")
    assert cgroup.parent(tmp_path) == mounted / "user.slice"


def test_where_no_group_hands_memory_on_it_is_lacking(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/\n")
    write(tmp_path / "sys/fs/cgroup/cgroup.subtree_control", "cpu pids\n")
    with pytest.raises(LackError, match="no memory cgroup"):
        cgroup.parent(tmp_path)


def test_a_limit_above_what_the_machine_has_left_protects_nothing(tmp_path: Path) -> None:
    write(tmp_path / "proc/meminfo", "MemTotal:  9000 kB\nMemAvailable:    2048 kB\n")
    with (
        pytest.raises(LackError, match="needs 3 MiB of memory to be limited to; 2 are available"),
        cgroup.memory_group(3 * MIB, tmp_path),
    ):
        pass


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
def test_a_group_is_limited_swap_included(tmp_path: Path, files: list[str], expected: dict[str, str]) -> None:
    for name in files:
        write(tmp_path / name, "max")
    cgroup.limit(tmp_path, 7)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == expected


def test_a_job_in_a_memory_group_is_killed_for_memory(supervisor: Supervisor, job: MakeJob) -> None:
    """The kernel kills the rank that takes more than the group may; where no group can be made, that is said."""
    outcome = supervisor.run(job("fill_memory", world_size=1, limits=Limits(memory=Size(128 * MIB))))
    if outcome.kind is OutcomeKind.UNAVAILABLE:
        assert "memory cgroup" in outcome.reason
    else:
        assert (outcome.kind, outcome.signal) == (OutcomeKind.OUT_OF_MEMORY, "SIGKILL")


def test_a_rank_has_a_shm_of_its_own(supervisor: Supervisor, job: MakeJob) -> None:
    """It is as large as asked for, and nobody else's; where none can be mounted, that is said."""
    outcome = supervisor.run(job("size_of_shm", world_size=1, limits=Limits(shm=Size(MIB))))
    if outcome.kind is OutcomeKind.UNAVAILABLE:
        assert "/dev/shm" in outcome.reason
    else:
        assert (outcome.kind, outcome.ranks[0].value) == (OutcomeKind.PASSED, MIB)
    assert not Path("/dev/shm/rank-was-here").exists()
