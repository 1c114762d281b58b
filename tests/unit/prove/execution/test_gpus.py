"""GPUs shared between processes: all or nothing, no deadlock, and a killed holder frees its GPUs."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from matrix.ground.errors import MatrixError
from matrix.kit.rank import LackError
from matrix.prove.execution.gpus import CLAIM, GATE, GpuClaim, Pool, locks
from matrix.prove.planning.packing import Demand
from matrix.prove.provision.project import ROOT

NAMES = ("GPU-0", "GPU-1", "GPU-2", "GPU-3")
HANG_S = 30.0  # limit for hanging tests
# Takes GPUs, prints their names, and holds them until its input ends.
HOLDER = """
import sys
from pathlib import Path
from matrix.prove.execution.gpus import Pool
from matrix.prove.planning.packing import Demand
with Pool({names!r}, Path({folder!r})).take(Demand({count})) as names:
    print(",".join(names), flush=True)
    sys.stdin.read()
"""
# Waits for all GPUs, and prints that it waits.
WAITER = """
from pathlib import Path
from matrix.prove.execution.gpus import Pool
from matrix.prove.planning.packing import Demand
with Pool({names!r}, Path({folder!r}), lambda text: print(text, flush=True)).take(Demand(4)):
    pass
"""
# Takes and releases GPUs many times. While it holds a GPU, a file exists for it, which a second user can't create.
WORKER = """
import os, random, sys
from pathlib import Path
from matrix.prove.execution.gpus import Pool
from matrix.prove.planning.packing import Demand
pool, folder, chance = Pool({names!r}, Path({folder!r})), Path({folder!r}), random.Random({seed})
for _ in range(40):
    with pool.take(Demand(chance.randint(1, 4))) as names:
        for name in names:
            os.close(os.open(folder / f"user-{{name}}", os.O_CREAT | os.O_EXCL))
        for name in names:
            (folder / f"user-{{name}}").unlink()
"""


class Holders:
    """Processes that hold GPUs; all are ended after the test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.started = folder, list[subprocess.Popen[str]]()

    def start(self, script: str, **values: object) -> subprocess.Popen[str]:
        text = script.format(names=NAMES, folder=str(self.folder), **values)
        process = subprocess.Popen(
            [sys.executable, "-c", text], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.started.append(process)
        return process


@pytest.fixture
def holders(tmp_path: Path) -> Iterator[Holders]:
    made = Holders(tmp_path / "gpus")
    yield made
    for process in made.started:
        with process:  # which closes its pipes and waits
            process.kill()


def held(process: subprocess.Popen[str]) -> str:
    """Wait for a holder and return the names of its GPUs."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_processes_get_different_gpus(holders: Holders) -> None:
    first, second = holders.start(HOLDER, count=1), holders.start(HOLDER, count=2)
    assert len({*held(first).split(","), *held(second).split(",")}) == 3


def test_take_waits_for_all_gpus(holders: Holders) -> None:
    """Three GPUs are free and four are needed: it gets none before the fourth is free."""
    one = holders.start(HOLDER, count=1)
    held(one)
    four = holders.start(HOLDER, count=4)
    assert four.stdout is not None
    assert select.select([four.stdout], [], [], 0.5)[0] == []
    one.kill()
    assert set(held(four).split(",")) == set(NAMES)


def test_a_killed_holder_frees_its_gpus(holders: Holders) -> None:
    holder = holders.start(HOLDER, count=4)
    held(holder)
    os.kill(holder.pid, signal.SIGKILL)
    with Pool(NAMES, holders.folder).take(Demand(4)) as names:
        assert set(names) == set(NAMES)


def test_killed_waiter_frees_its_gpus_and_the_gate(holders: Holders) -> None:
    one = holders.start(HOLDER, count=1)
    held(one)
    greedy = holders.start(HOLDER, count=4)
    waiting = holders.start(HOLDER, count=3)
    os.kill(greedy.pid, signal.SIGKILL)
    assert len(held(waiting).split(",")) == 3


def test_concurrent_takers_do_not_overlap_or_hang(holders: Holders) -> None:
    """Four processes take 1 to 4 GPUs forty times each; a GPU with two users would raise FileExistsError."""
    workers = [holders.start(WORKER, seed=seed) for seed in range(4)]
    assert [worker.wait(HANG_S) for worker in workers] == [0, 0, 0, 0]


def test_take_more_gpus_than_the_pool_has_raises(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="not enough GPUs"), Pool(NAMES, tmp_path).take(Demand(5)):
        pass


def test_a_wait_names_the_holder(holders: Holders) -> None:
    one = holders.start(HOLDER, count=4)
    held(one)
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        one.kill()

    with Pool(NAMES, holders.folder, say).take(Demand(1)):
        assert said == [f"waiting for 1 of 4 GPUs, held by process {one.pid} (locks: {holders.folder})"]


def test_waiter_does_not_poll(holders: Holders, monkeypatch: pytest.MonkeyPatch) -> None:
    """It decides at its arrival and when a claim ends: here that of the holder, and no clock wakes it."""
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it sleeps and looks again"))
    one = holders.start(HOLDER, count=4)
    held(one)
    with Pool(NAMES, holders.folder, lambda text: one.kill()).take(Demand(4)) as names:
        assert set(names) == set(NAMES)


def test_started_case_lets_the_others_decide(holders: Holders) -> None:
    """Two wait for the same process: at its end the first decides that the second may start, too."""
    one = holders.start(HOLDER, count=4)
    held(one)
    two = [holders.start(HOLDER, count=2) for _ in range(2)]
    one.kill()
    assert {*held(two[0]).split(","), *held(two[1]).split(",")} == set(NAMES)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_a_wait(holders: Holders, number: signal.Signals) -> None:
    held(holders.start(HOLDER, count=1))
    waiter = holders.start(WAITER)
    assert held(waiter).startswith("waiting for 4 of 4 GPUs")
    waiter.send_signal(number)
    assert waiter.wait(HANG_S) == -number


def test_wait_ends_after_its_longest_time(holders: Holders) -> None:
    one = holders.start(HOLDER, count=1)
    held(one)
    with (
        pytest.raises(MatrixError, match="not free") as raised,
        Pool(NAMES, holders.folder, wait_s=0.01).take(Demand(4)),
    ):
        pass
    assert f"held by process {one.pid}" in str(raised.value)
    assert len([*holders.folder.glob("claim-*")]) == 1  # its own is gone


def test_claim_without_a_process_is_removed(tmp_path: Path) -> None:
    """Its process was killed while it made or removed it."""
    abandoned = tmp_path / f"{CLAIM}.00000000000000000001.1.4.0.GPU-0"
    os.mkfifo(abandoned)
    with Pool(NAMES, tmp_path).take(Demand(4)):
        assert not abandoned.exists()
    assert [*tmp_path.glob(f"{CLAIM}*")] == []


@pytest.mark.parametrize("name", ["x", '{"process": 1', "a.b.c.d.GPU-0"])
def test_live_claim_of_another_form_raises(tmp_path: Path, name: str) -> None:
    """Its process has GPUs that nothing names."""
    os.mkfifo(tmp_path / f"{CLAIM}.{name}")
    with (
        (tmp_path / f"{CLAIM}.{name}").open("r+b", buffering=0),
        pytest.raises(MatrixError, match="not a claim"),
        Pool(NAMES, tmp_path).take(Demand(1)),
    ):
        pass


def test_claim_that_is_a_folder_raises(tmp_path: Path) -> None:
    (tmp_path / f"{CLAIM}.1.2.3.4.GPU-0").mkdir()
    with pytest.raises(MatrixError, match="Is a directory"), Pool(NAMES, tmp_path).take(Demand(1)):
        pass


def test_pools_without_a_common_gpu_do_not_wait(holders: Holders) -> None:
    """Two jobs of a node, each with its own GPUs: one waits for its own, and the other starts."""
    held(holders.start(HOLDER, count=4))
    waiter = holders.start(WAITER)
    assert held(waiter).startswith("waiting for 4 of 4 GPUs")
    with Pool(("GPU-8", "GPU-9"), holders.folder, wait_s=0.01).take(Demand(1)) as names:
        assert names == ("GPU-8",)


def test_pools_share_the_gpus_of_both(holders: Holders) -> None:
    held(holders.start(HOLDER, count=3))
    with Pool(("GPU-2", "GPU-3", "GPU-4"), holders.folder).take(Demand(2)) as names:
        assert names == ("GPU-3", "GPU-4")


def test_small_case_overtakes_a_waiting_one(holders: Holders) -> None:
    """Three of four are held and wanted: the fourth GPU is left over."""
    held(holders.start(HOLDER, count=3))
    waiter = holders.start(WAITER.replace("Demand(4)", "Demand(3)"))
    assert held(waiter).startswith("waiting for 3 of 4 GPUs")
    with Pool(NAMES, holders.folder, wait_s=0.01).take(Demand(1)) as names:
        assert names == ("GPU-3",)


def test_lock_that_is_a_link_raises(tmp_path: Path) -> None:
    """Another user's link in the folder would make root create a file elsewhere."""
    folder = tmp_path / "locks"
    folder.mkdir()
    (folder / GATE).symlink_to(tmp_path / "created")
    with pytest.raises(MatrixError, match="the GPU locks can't be used"), Pool(NAMES, folder).take(Demand(1)):
        pass
    assert not (tmp_path / "created").exists()


@pytest.mark.parametrize("kind", ["link", "file", "another user's"])
def test_lock_folder_must_be_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Its name in /tmp is predictable: another user can make it first."""
    folder = tmp_path / "locks"
    if kind == "link":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    elif kind == "file":
        folder.touch()
    else:
        folder.mkdir()
        os.chown(folder, 1234, -1) if os.geteuid() == 0 else monkeypatch.setattr(os, "geteuid", lambda: 1)
    with pytest.raises(MatrixError, match="the GPU locks can't be used"), Pool(NAMES, folder).take(Demand(1)):
        pass
    assert not list((tmp_path / "elsewhere").glob("*"))


def test_locks_do_not_depend_on_tmpdir(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two jobs of a user have different folders in TMPDIR, and the same GPUs."""
    monkeypatch.setenv("TMPDIR", "/scratch/job-7")
    assert locks({}) == Path(f"/tmp/megatrix-gpus-{os.getuid()}")


def test_job_sees_only_its_gpus(tmp_path: Path) -> None:
    variables = {"NCCL_MAX_CTAS": "4"}
    with Pool(NAMES, tmp_path).take(Demand(1)), Pool(NAMES, tmp_path).admit(Demand(2), variables) as of_ranks:
        assert of_ranks == {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2", **variables}


def test_no_gpu_is_held_outside_an_admission(tmp_path: Path) -> None:
    """The supervisor of the job decides when it is entered; meanwhile another case has all GPUs."""
    impatient = Pool(NAMES, tmp_path, wait_s=0.0)
    admission = Pool(NAMES, tmp_path).admit(Demand(2), {})
    with impatient.take(Demand(4)):
        pass
    with admission, pytest.raises(MatrixError, match="not free"), impatient.take(Demand(4)):
        pass
    with impatient.take(Demand(4)):
        pass


def test_unusable_locks_make_a_case_unavailable(tmp_path: Path) -> None:
    """A supervisor makes a LackError the outcome `unavailable`."""
    (tmp_path / "locks").touch()
    admission = Pool(NAMES, tmp_path / "locks").admit(Demand(2), {})
    with pytest.raises(LackError, match="the GPU locks can't be used"), admission:
        pass


def test_take_creates_the_lock_folder(tmp_path: Path) -> None:
    with Pool(NAMES, tmp_path / "site" / "locks").take(Demand(1)) as names:
        assert names == ("GPU-0",)


def test_cases_share_a_card_up_to_its_memory(tmp_path: Path) -> None:
    """The third waits until one of the others ends; a case without `card` gets the whole GPU, after all parts."""
    pool = Pool(["a"], tmp_path / "locks", cards={"a": 10}, wait_s=0.0)
    part = Demand(1, card=5)
    with pool.take(part) as first, pool.take(part) as second:
        assert first == second == ("a",)
        for demand in (part, Demand(1)):
            with pytest.raises(MatrixError, match="not free"), pool.take(demand):
                pass
    with pool.take(Demand(1)), pytest.raises(MatrixError, match="not free"), pool.take(part):
        pass
    with pool.take(part) as again:
        assert again == ("a",)


def test_part_larger_than_the_card_takes_it_all(tmp_path: Path) -> None:
    """Else it would wait for ever."""
    pool = Pool(["a"], tmp_path / "locks", cards={"a": 10}, wait_s=0.0)
    with pool.take(Demand(1, card=16)), pytest.raises(MatrixError, match="not free"), pool.take(Demand(1, card=1)):
        pass


def test_part_waits_behind_a_whole_gpu(tmp_path: Path) -> None:
    pool = Pool(["a"], tmp_path / "locks", cards={"a": 10})
    holder, whole, part = (
        GpuClaim(number, 1, Demand(1, card=size), target)
        for number, size, target in ((1, 5, "a"), (2, 0, pool._waits), (3, 5, pool._waits))
    )
    assert pool._granted(part, [holder, whole, part]) == ()
    assert pool._granted(part, [holder, part]) == ("a",)
    assert pool._granted(whole, [holder, whole, part]) == ()


def test_gpu_of_unknown_memory_is_not_shared(tmp_path: Path) -> None:
    pool = Pool(["a"], tmp_path / "locks", wait_s=0.0)
    with pool.take(Demand(1, card=5)), pytest.raises(MatrixError, match="not free"), pool.take(Demand(1, card=5)):
        pass
