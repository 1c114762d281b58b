"""What becomes of the ranks when something happens to the process that owns them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from matrix.execution.ranks.forkserver_child import REQUEST
from matrix.execution.ranks.timeouts import OVERTIME_S
from tests.unit.execution.ranks.marks import MARK, marked

ROOT = Path(__file__).parents[4]
START_S = 60.0  # s for an owner to get its ranks going: 0.3 s here, on an idle machine


class Owner:
    """An owner.py of its own session, so that the tests can send to its whole group what a terminal would."""

    def __init__(self, body: str, folder: Path, *, fresh: bool = False, preload: tuple[str, ...] = ("json",)) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = folder
        self.process = subprocess.Popen(
            [
                sys.executable,
                Path(__file__).with_name("owner.py"),
                body,
                folder / "logs",
                "fresh" if fresh else "pooled",
                *preload,
            ],
            env={
                **os.environ,
                MARK: self.mark,
                "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]),
                "TMPDIR": str(folder),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_until_ready(self) -> None:
        """Return when both ranks have said that they are ready."""
        logs = [self.folder / "logs" / f"rank-{rank}.log" for rank in range(2)]
        give_up = time.monotonic() + START_S
        while not all(log.exists() and b"ready" in log.read_bytes() for log in logs):
            assert self.process.poll() is None
            assert time.monotonic() < give_up
            time.sleep(0.02)

    def wait_until_alone(self, limit_s: float) -> dict[int, str]:
        """Return the processes that are left, apart from the owner, after `limit_s` seconds; none as soon as none."""
        give_up = time.monotonic() + limit_s
        while time.monotonic() < give_up:
            left = {pid: what for pid, what in marked(self.mark).items() if pid != self.process.pid}
            if not left:
                break
            time.sleep(0.02)
        return left


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Callable[..., Owner]]:
    owners = []

    def make(*args: object, **options: object) -> Owner:
        owners.append(Owner(*args, folder=tmp_path, **options))  # type: ignore[arg-type, misc]
        return owners[-1]

    yield make
    for made in owners:
        with made.process:
            made.process.kill()
        for pid in marked(made.mark):  # a failed test must not leave them either
            os.kill(pid, signal.SIGKILL)


def test_kill_9_of_the_owner_leaves_no_process(owner: Callable[..., Owner], fresh: bool) -> None:
    victim = owner("leave_children_and_wait", fresh=fresh)
    victim.wait_until_ready()
    victim.process.kill()
    assert victim.wait_until_alone(OVERTIME_S) == {}


@pytest.mark.parametrize("moment", [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5])
def test_kill_9_at_any_moment_leaves_no_process(owner: Callable[..., Owner], moment: float, fresh: bool) -> None:
    """Before the fork-server runs, while it starts, between two ranks, at work: a second covers them all."""
    victim = owner("leave_children", fresh=fresh)
    time.sleep(moment)
    victim.process.kill()
    assert victim.wait_until_alone(OVERTIME_S) == {}


def test_a_fork_server_whose_owner_died_before_it_came_to_itself_ends(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    os.mkfifo(tmp_path / "ranks" / "lifeline")  # and nobody reads it
    request: dict[str, object] = {
        "lifeline": str(tmp_path / "ranks" / "lifeline"),
        "pythonpath": None,
        "path": [],
        "modules": [],
    }
    done = subprocess.run(
        [sys.executable, "-c", "import matrix.execution.ranks.forkserver_child"],
        env={**os.environ, REQUEST: json.dumps(request), "PYTHONPATH": str(ROOT)},
        timeout=START_S,
    )
    assert done.returncode == 1
    assert not (tmp_path / "ranks").exists()


def test_kill_9_of_the_owner_leaves_no_working_folder(owner: Callable[..., Owner], tmp_path: Path) -> None:
    victim = owner("leave_children_and_wait")
    victim.wait_until_ready()
    assert len(list(tmp_path.glob("ranks-*"))) == 1
    victim.process.kill()
    victim.wait_until_alone(OVERTIME_S)
    assert list(tmp_path.glob("ranks-*")) == []


def test_kill_9_of_the_owners_group_leaves_no_process(owner: Callable[..., Owner], fresh: bool) -> None:
    victim = owner("leave_children_and_wait", fresh=fresh)
    victim.wait_until_ready()
    os.killpg(victim.process.pid, signal.SIGKILL)
    assert victim.wait_until_alone(OVERTIME_S) == {}


def test_a_terminals_ctrl_c_ends_all_within_5_s_and_is_raised_again(owner: Callable[..., Owner], fresh: bool) -> None:
    victim = owner("leave_children_and_wait", fresh=fresh)
    victim.wait_until_ready()
    os.killpg(victim.process.pid, signal.SIGINT)
    output, _ = victim.process.communicate(timeout=OVERTIME_S)
    assert output == "interrupted\n"
    assert victim.wait_until_alone(OVERTIME_S) == {}


def test_ctrl_c_lets_ranks_clear_away(owner: Callable[..., Owner], tmp_path: Path) -> None:
    victim = owner("wait_for_sigterm")
    victim.wait_until_ready()
    os.killpg(victim.process.pid, signal.SIGINT)
    victim.process.communicate(timeout=OVERTIME_S)
    assert (tmp_path / "logs" / "rank-1.log").read_text() == "ready\ncleared away\n"


def test_a_second_ctrl_c_leaves_no_process_either(owner: Callable[..., Owner]) -> None:
    victim = owner("leave_stubborn_children_and_wait")
    victim.wait_until_ready()
    os.killpg(victim.process.pid, signal.SIGINT)
    time.sleep(0.2)  # into the wait for SIGTERM to be obeyed
    os.killpg(victim.process.pid, signal.SIGINT)
    victim.process.communicate(timeout=OVERTIME_S)
    assert victim.wait_until_alone(OVERTIME_S) == {}


def test_ctrl_c_while_the_fork_server_imports_ends_at_once(owner: Callable[..., Owner], tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(
        "import pathlib, time\npathlib.Path(__file__).with_suffix('.on').touch()\ntime.sleep(3600)"
    )
    victim = owner("nothing", preload=("endless",))
    give_up = time.monotonic() + START_S
    while not (tmp_path / "endless.on").exists():
        assert time.monotonic() < give_up
        time.sleep(0.02)
    os.killpg(victim.process.pid, signal.SIGINT)
    output, _ = victim.process.communicate(timeout=OVERTIME_S)
    assert output == "interrupted\n"
    assert victim.wait_until_alone(OVERTIME_S) == {}


def test_an_owner_without_a_main_guard_is_not_run_again_in_its_ranks(owner: Callable[..., Owner], fresh: bool) -> None:
    output, _ = owner("nothing", fresh=fresh).process.communicate(timeout=START_S)
    assert output == "passed\n"


def test_the_end_of_orphans_is_no_noise(owner: Callable[..., Owner], fresh: bool) -> None:
    """multiprocessing's fork-server warns at each child that it did not fork."""
    _, noise = owner("leave_children", fresh=fresh).process.communicate(timeout=START_S)
    assert noise == ""


def test_what_a_rank_leaves_in_dev_shm_is_cleared_away_without_noise(owner: Callable[..., Owner], fresh: bool) -> None:
    def semaphores() -> set[Path]:
        return set(Path("/dev/shm").glob("sem.mp-*"))

    before = semaphores()
    _, noise = owner("leave_semaphore", fresh=fresh).process.communicate(timeout=START_S)
    assert noise == ""
    assert semaphores() <= before


def test_a_rank_that_floods_its_log_does_not_hold_up_ctrl_c(owner: Callable[..., Owner]) -> None:
    victim = owner("flood")
    victim.wait_until_ready()
    os.killpg(victim.process.pid, signal.SIGINT)
    output, _ = victim.process.communicate(timeout=OVERTIME_S)
    assert output == "interrupted\n"
