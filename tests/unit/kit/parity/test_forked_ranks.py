"""Forked ranks: their failures, their deadline, and that none is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from matrix.kit.parity import forked_ranks
from matrix.kit.parity.forked_ranks import Ranks
from matrix.kit.parity.tiny_model import UnsupportedError

BLOCKED = """
import os, sys, time
from functools import partial
from pathlib import Path
from matrix.kit.parity import forked_ranks
from matrix.kit.parity.forked_ranks import Ranks

def report(descriptor, rank):
    os.write(descriptor, f"{os.getpid()}\\n".encode())

def block(descriptor, rank):
    report(descriptor, rank)
    time.sleep(600)

folder, descriptor = Path(sys.argv[1]), int(sys.argv[2])
ranks = forked_ranks.Ranks.forked(2, forked_ranks.serve)
if sys.argv[3] == "waiting":
    ranks.run(partial(report, descriptor), folder, 600)
    time.sleep(600)
ranks.run(partial(block, descriptor), folder, 600)
"""

# Bodies: they are pickled.


def leave(folder: Path, name: str, rank: int) -> None:
    (folder / f"{name}-{rank}").write_text(str(os.getpid()))


def sleep(rank: int) -> None:
    time.sleep(600)


def see_threads(rank: int) -> None:
    assert sys.modules["torch"].renewed == [1]


def exit_well(rank: int) -> None:
    os._exit(0)


def leave_a_child(rank: int) -> None:
    """It keeps the connection of the rank, which ends without an answer."""
    if os.fork():
        os._exit(3)
    time.sleep(600)


def signalled(number: int, rank: int) -> None:
    os.kill(os.getpid(), number)


def raised(error: Exception, only: int, peer: Callable[[int], None], rank: int) -> None:
    if rank == only:
        raise error
    peer(rank)


def late(folder: Path, rank: int) -> None:
    time.sleep(1)
    leave(folder, "late", rank)


@contextmanager
def living(size: int) -> Iterator[Ranks]:
    ranks = Ranks.forked(size, forked_ranks.serve)
    try:
        yield ranks
    finally:
        ranks.end()


def have_ended(descriptors: Sequence[int]) -> bool:
    """Return whether the processes of pidfds end within ten seconds each, and close them."""
    ended = [bool(wait([descriptor], 10)) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    return all(ended)


def test_ranks_that_return_have_no_failure(tmp_path: Path) -> None:
    assert forked_ranks.run(3, partial(leave, tmp_path, "was"), tmp_path, 60) == []
    assert {path.name for path in tmp_path.iterdir()} >= {"was-0", "was-1", "was-2"}


def test_forked_rank_renews_its_threads_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Else threads of its backward pass do it at once, and one may find none: "Invalid thread pool!"."""
    renewed: list[int] = []
    torch = SimpleNamespace(get_num_threads=lambda: 1, set_num_threads=renewed.append, renewed=renewed)
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert forked_ranks.run(2, see_threads, tmp_path, 60) == []
    assert renewed == []


def test_ranks_run_bodies_in_the_same_processes(tmp_path: Path) -> None:
    """Two numbers of ranks live side by side."""
    with living(2) as two, living(1) as one:
        for name in ("first", "second"):
            assert two.run(partial(leave, tmp_path, name), tmp_path, 60) == []
            assert one.run(partial(leave, tmp_path, f"one-{name}"), tmp_path, 60) == []
        pids = {path.name: path.read_text() for path in tmp_path.glob("*-[01]")}
        assert two.bodies == one.bodies == 2
        descriptors = [os.pidfd_open(pid) for pid in (*two.pids, *one.pids)]
    assert [pids[f"second-{rank}"] for rank in (0, 1)] == [pids[f"first-{rank}"] for rank in (0, 1)]
    assert pids["one-second-0"] == pids["one-first-0"]
    assert len(set(pids.values())) == 3
    assert have_ended(descriptors)


@pytest.mark.parametrize(
    ("body", "deadline", "origins"),
    [
        (partial(raised, ValueError("wrong"), 1, sleep), 60, ["harness", "transport"]),
        (partial(signalled, signal.SIGUSR1), 60, ["killed", "killed"]),
        (sleep, 0.1, ["timeout", "timeout"]),
        (exit_well, 60, ["killed", "killed"]),
        (leave_a_child, 60, ["killed", "killed"]),
    ],
)
def test_failure_ends_all_ranks_that_lived(
    body: Callable[[int], None], deadline: float, origins: list[str], tmp_path: Path
) -> None:
    with living(2) as ranks:
        assert ranks.run(partial(leave, tmp_path, "was"), tmp_path, 60) == []
        descriptors = [os.pidfd_open(pid) for pid in ranks.pids]
        assert [row.origin for row in ranks.run(body, tmp_path, deadline, grace_s=0.1)] == origins
        assert have_ended(descriptors)
        assert not ranks.home.exists()


def test_rank_that_ended_between_bodies_is_killed(tmp_path: Path) -> None:
    with living(2) as ranks:
        assert ranks.run(partial(leave, tmp_path, "was"), tmp_path, 60) == []
        os.kill(ranks.pids[1], signal.SIGUSR1)
        wait([descriptor := os.pidfd_open(ranks.pids[1])])
        os.close(descriptor)
        failures = ranks.run(sleep, tmp_path, 60, grace_s=0.0)
    assert [(row.rank, row.origin) for row in failures] == [(1, "killed"), (0, "transport")]


def test_body_that_no_rank_reads_is_the_harness(tmp_path: Path) -> None:
    """What unpickling raises is the reason."""
    assert [row.origin for row in forked_ranks.run(1, Unreadable(), tmp_path, 60)] == ["harness"]


class Unreadable:
    """Can be pickled alone."""

    def __call__(self, rank: int) -> None: ...

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def test_first_failure_is_the_cause(tmp_path: Path) -> None:
    """A peer of the rank that raised waits for ever: it is ended, and is not the cause."""
    body = partial(raised, ValueError("wrong"), 1, sleep)
    failures = forked_ranks.run(2, body, tmp_path, 60, grace_s=0.0)
    assert (failures[0].rank, failures[0].origin, failures[0].text) == (1, "harness", "ValueError: wrong")
    assert [failure.origin for failure in failures[1:]] == ["transport"]


def test_rank_killed_while_it_writes_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its peers' end kills it, and what it has written by then is no answer."""
    campaign, send = os.getpid(), getattr(Connection, "_send")  # noqa: B009

    def write(connection: Any, content: bytes, *rest: Any) -> None:
        if os.getpid() == campaign:
            send(connection, content, *rest)
        else:
            os.write(connection.fileno(), content[:9])
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(Connection, "_send", write)
    assert [row.origin for row in forked_ranks.run(1, exit, tmp_path, 60)] == ["transport"]


def test_refusal_ends_waiting_peers_at_once(tmp_path: Path) -> None:
    """A peer that would go on later does not get there."""
    body = partial(raised, UnsupportedError("no such option"), 1, partial(late, tmp_path))
    failures = forked_ranks.run(2, body, tmp_path, 60, grace_s=60)
    assert (failures[0].rank, failures[0].origin) == (1, "upstream")
    assert not (tmp_path / "late-0").exists()


@pytest.mark.parametrize(
    "text",
    [
        "MemoryError: ",
        "RuntimeError: [enforce fail] can't allocate memory: you tried 8",
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "RuntimeError: NCCL error: Call to CUDA function failed. Cuda failure 2 'out of memory'",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
def test_missing_memory_is_its_own_reason(text: str, tmp_path: Path) -> None:
    """It may come from any frame, of this project's or of upstream's."""
    kind, _, words = text.partition(": ")
    error = {"MemoryError": MemoryError, "RuntimeError": RuntimeError}[kind](words)
    assert [row.origin for row in forked_ranks.run(1, partial(raised, error, 0, sleep), tmp_path, 60)] == ["memory"]


def test_deadline_ends_every_rank(tmp_path: Path) -> None:
    assert [failure.origin for failure in forked_ranks.run(2, sleep, tmp_path, 0.1)] == ["timeout"] * 2


def test_rank_that_dies_is_killed(tmp_path: Path) -> None:
    failures = forked_ranks.run(1, partial(signalled, signal.SIGUSR1), tmp_path, 60)
    assert [(failure.origin, failure.text) for failure in failures] == [("killed", f"exit status {-signal.SIGUSR1}")]


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("state", ["running", "waiting"])
def test_no_rank_outlives_its_campaign(state: str, ending: int, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    command = [sys.executable, "-c", BLOCKED, str(tmp_path), str(writer), state]
    with subprocess.Popen(command, pass_fds=[writer], stderr=subprocess.DEVNULL) as campaign:
        os.close(writer)
        with os.fdopen(reader) as lines:
            descriptors = [os.pidfd_open(int(lines.readline())) for _ in range(2)]
            campaign.send_signal(ending)
            assert have_ended(descriptors)


def test_origin_is_that_of_the_innermost_frame() -> None:
    """Upstream's code that a rank calls, and this project's stand-in that upstream's code calls."""
    sources = {
        "upstream": "/x/megatron/core/a.py",
        "transport": "/x/torch/distributed/a.py",
        "harness": "/x/matrix/kit/a.py",
        "": "/x/torch/distributed/checkpoint/a.py",  # whose code raised it is that of the frame outside
    }
    names = {name: compile("def call(next_): return next_()", path, "exec") for name, path in sources.items()}
    calls: dict[str, Any] = {}
    for name, code in names.items():
        scope: dict[str, Any] = {}
        exec(code, scope)
        calls[name] = scope["call"]

    for inner in sources:
        for outer in filter(None, sources):
            with pytest.raises(ZeroDivisionError) as caught:
                calls[outer](lambda inner=inner: calls[inner](eval("lambda: 1 / 0")))
            assert forked_ranks.origin(caught.value) == (inner or outer)


def test_lost_connection_is_no_refusal_of_upstream() -> None:
    """Megatron-FSDP waits for a transfer itself; what gloo raises then has no frame of torch.distributed."""
    scope: dict[str, Any] = {}
    exec(compile("def wait(lost): raise lost", "/x/megatron/core/a.py", "exec"), scope)
    with pytest.raises(RuntimeError) as caught:
        scope["wait"](RuntimeError("[pair.cc:545] Read error [127.0.0.1]:20890: Connection reset by peer."))
    assert forked_ranks.origin(caught.value) == "transport"
