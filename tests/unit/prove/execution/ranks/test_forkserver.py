"""Ranks end when their owner is killed or interrupted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import hostile_modules
from tests.unit.prove.execution.ranks.marks import MARK, marked

ROOT = Path(__file__).parents[5]
START_S = 60.0  # s for an owner to start its ranks: 0.3 s on an idle machine
STOP_S = 60.0  # s for it to stop them: 0.3 to 1.8 s, above 5 s on a busy machine. Owner's jobs last an hour


class Owner:
    """An owner.py in its own session, so that tests can signal its whole group like a terminal."""

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
        """Wait until both ranks have printed that they are ready."""
        logs = [self.folder / "logs" / f"rank-{rank}.log" for rank in range(2)]
        give_up = time.monotonic() + START_S
        while not all(log.exists() and b"ready" in log.read_bytes() for log in logs):
            assert self.process.poll() is None
            assert time.monotonic() < give_up
            time.sleep(0.02)

    def wait_until_alone(self, limit_s: float) -> dict[int, str]:
        """Wait at most `limit_s` seconds for all processes except the owner to end; return those left."""
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
        for pid in marked(made.mark):  # a failed test must leave no process
            os.kill(pid, signal.SIGKILL)


def test_killed_owner_leaves_no_process(owner: Callable[..., Owner], fresh: bool) -> None:
    victim = owner("leave_children_and_wait", fresh=fresh)
    victim.wait_until_ready()
    victim.process.kill()
    assert victim.wait_until_alone(STOP_S) == {}


@pytest.mark.parametrize("moment", [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5])
def test_owner_killed_at_any_moment_leaves_no_process(owner: Callable[..., Owner], moment: float, fresh: bool) -> None:
    """The moments cover the start of the forkserver, the start of the ranks and their work."""
    victim = owner("leave_children", fresh=fresh)
    time.sleep(moment)
    victim.process.kill()
    assert victim.wait_until_alone(STOP_S) == {}


def test_killed_owner_leaves_no_working_folder(owner: Callable[..., Owner], tmp_path: Path) -> None:
    victim = owner("leave_children_and_wait")
    victim.wait_until_ready()
    assert len(list(tmp_path.glob("ranks-*"))) == 1
    victim.process.kill()
    victim.wait_until_alone(STOP_S)
    assert list(tmp_path.glob("ranks-*")) == []


def test_killed_owner_group_leaves_no_process(owner: Callable[..., Owner], fresh: bool) -> None:
    victim = owner("leave_children_and_wait", fresh=fresh)
    victim.wait_until_ready()
    os.killpg(victim.process.pid, signal.SIGKILL)
    assert victim.wait_until_alone(STOP_S) == {}


def test_ctrl_c_ends_all_and_is_raised_again(owner: Callable[..., Owner], fresh: bool) -> None:
    victim = owner("leave_children_and_wait", fresh=fresh)
    victim.wait_until_ready()
    os.killpg(victim.process.pid, signal.SIGINT)
    output, _ = victim.process.communicate(timeout=STOP_S)
    assert output == "interrupted\n"
    assert victim.wait_until_alone(STOP_S) == {}


def test_ctrl_c_of_another_thread_ends_the_wait(owner: Callable[..., Owner]) -> None:
    """Python handles signals in the main thread, and a wait of that thread goes on; so it does after a signal that
    arrives between Python's last look at its signals and the system call that waits."""
    victim = owner("leave_children_and_wait")
    victim.wait_until_ready()
    victim.process.send_signal(signal.SIGUSR2)
    output, _ = victim.process.communicate(timeout=STOP_S)
    assert output == "interrupted\n"
    assert victim.wait_until_alone(STOP_S) == {}


def test_ctrl_c_sends_sigterm_to_ranks(owner: Callable[..., Owner], tmp_path: Path) -> None:
    victim = owner("wait_for_sigterm")
    victim.wait_until_ready()
    os.killpg(victim.process.pid, signal.SIGINT)
    victim.process.communicate(timeout=STOP_S)
    assert (tmp_path / "logs" / "rank-1.log").read_text() == "ready\ncleaned up\n"


def test_second_ctrl_c_leaves_no_process(owner: Callable[..., Owner]) -> None:
    victim = owner("leave_stubborn_children_and_wait")
    victim.wait_until_ready()
    os.killpg(victim.process.pid, signal.SIGINT)
    time.sleep(0.2)  # during the wait after SIGTERM
    os.killpg(victim.process.pid, signal.SIGINT)
    victim.process.communicate(timeout=STOP_S)
    assert victim.wait_until_alone(STOP_S) == {}


def test_ctrl_c_during_the_preload_ends_at_once(owner: Callable[..., Owner], tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(
        "import pathlib, time\npathlib.Path(__file__).with_suffix('.on').touch()\ntime.sleep(3600)"
    )
    victim = owner("nothing", preload=("endless",))
    give_up = time.monotonic() + START_S
    while not (tmp_path / "endless.on").exists():
        assert time.monotonic() < give_up
        time.sleep(0.02)
    os.killpg(victim.process.pid, signal.SIGINT)
    output, _ = victim.process.communicate(timeout=STOP_S)
    assert output == "interrupted\n"
    assert victim.wait_until_alone(STOP_S) == {}


def test_owner_without_a_main_guard_runs_once(owner: Callable[..., Owner], fresh: bool) -> None:
    output, _ = owner("nothing", fresh=fresh).process.communicate(timeout=START_S)
    assert output == "passed\n"


def test_ended_orphans_print_no_warning(owner: Callable[..., Owner], fresh: bool) -> None:
    """multiprocessing's forkserver warns about each child that it did not fork."""
    _, errors = owner("leave_children", fresh=fresh).process.communicate(timeout=START_S)
    assert errors == ""


def test_left_semaphores_are_removed_silently(owner: Callable[..., Owner], fresh: bool) -> None:
    """Other processes of this machine have semaphores too, so each rank prints the name of its own."""
    started = owner("leave_semaphore", fresh=fresh)
    _, errors = started.process.communicate(timeout=START_S)
    assert errors == ""
    logs = "".join(log.read_text() for log in (started.folder / "logs").glob("rank-*.log"))
    names = re.findall(r"^semaphore /(.+)$", logs, re.MULTILINE)
    assert len(names) == 2
    assert [name for name in names if Path(f"/dev/shm/sem.{name}").exists()] == []


def test_endless_output_does_not_delay_ctrl_c(owner: Callable[..., Owner]) -> None:
    victim = owner("flood")
    victim.wait_until_ready()
    os.killpg(victim.process.pid, signal.SIGINT)
    output, _ = victim.process.communicate(timeout=STOP_S)
    assert output == "interrupted\n"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="PYTHONSAFEPATH is of Python 3.11")
@pytest.mark.parametrize("start", ["pooled", "fresh"])
def test_ranks_import_nothing_of_the_current_folder(tmp_path: Path, start: str) -> None:
    """multiprocessing starts the forkserver and its tracker by `python -c`, which searches the current folder first."""
    folder = hostile_modules.make(tmp_path / "folder", tmp_path / "executed")
    owner = Path(__file__).with_name("owner.py")
    line = [sys.executable, str(owner), "nothing", str(tmp_path / "logs"), start, "json"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    ended = subprocess.run(line, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert not (tmp_path / "executed").exists(), (tmp_path / "executed").read_text()
    assert ended.stdout == "passed\n", ended.stderr
