"""Forked ranks: their failures, their deadline, and that none is left."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from matrix.kit.parity import forked_ranks
from matrix.kit.parity.tiny_model import UnsupportedError

BLOCKED = """
import os, sys, time
from pathlib import Path
from matrix.kit.parity import forked_ranks

def body(rank):
    os.write(int(sys.argv[1]), f"{os.getpid()}\\n".encode())
    time.sleep(600)

forked_ranks.run(2, body, Path(sys.argv[2]), 600)
"""


def test_ranks_that_return_have_no_failure(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        (tmp_path / str(rank)).touch()

    assert forked_ranks.run(3, body, tmp_path, 60) == []
    assert {path.name for path in tmp_path.iterdir()} >= {"0", "1", "2"}


def test_first_failure_is_the_cause(tmp_path: Path) -> None:
    """A peer of the rank that raised waits for ever: it is ended, and is not the cause."""

    def body(rank: int) -> None:
        if rank == 1:
            raise ValueError("wrong")
        time.sleep(600)

    failures = forked_ranks.run(2, body, tmp_path, 60, grace_s=0.0)
    assert (failures[0].rank, failures[0].origin, failures[0].text) == (1, "harness", "ValueError: wrong")
    assert [failure.origin for failure in failures[1:]] == ["transport"]


def test_rank_killed_while_it_writes_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its peers' end kills it, and what it has written by then is no JSON."""

    def write(path: Path, text: str, **_: Any) -> None:
        path.write_bytes(text.encode()[:9])
        os.kill(os.getpid(), signal.SIGKILL)

    def body(rank: int) -> None:
        raise ValueError("wrong")

    monkeypatch.setattr(Path, "write_text", write)
    assert [row.origin for row in forked_ranks.run(1, body, tmp_path, 60)] == ["transport"]


def test_refusal_ends_waiting_peers_at_once(tmp_path: Path) -> None:
    """A peer that would go on later does not get there."""

    def body(rank: int) -> None:
        if rank == 1:
            raise UnsupportedError("no such option")
        time.sleep(1)
        (tmp_path / "went-on").touch()

    failures = forked_ranks.run(2, body, tmp_path, 60, grace_s=60)
    assert (failures[0].rank, failures[0].origin) == (1, "upstream")
    assert not (tmp_path / "went-on").exists()


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

    def body(rank: int) -> None:
        raise {"MemoryError": MemoryError, "RuntimeError": RuntimeError}[kind](words)

    assert [row.origin for row in forked_ranks.run(1, body, tmp_path, 60)] == ["memory"]


def test_deadline_ends_every_rank(tmp_path: Path) -> None:
    failures = forked_ranks.run(2, lambda rank: time.sleep(600), tmp_path, 0.1)
    assert [failure.origin for failure in failures] == ["timeout"] * 2


def test_rank_that_dies_is_killed(tmp_path: Path) -> None:
    failures = forked_ranks.run(1, lambda rank: os.kill(os.getpid(), signal.SIGUSR1), tmp_path, 60)
    assert [(failure.origin, failure.text) for failure in failures] == [("killed", f"exit status {-signal.SIGUSR1}")]


def test_no_rank_outlives_its_campaign(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    command = [sys.executable, "-c", BLOCKED, str(writer), str(tmp_path)]
    with subprocess.Popen(command, pass_fds=[writer]) as campaign:
        os.close(writer)
        with os.fdopen(reader) as lines:
            pids = [int(lines.readline()) for _ in range(2)]
            descriptors = [os.pidfd_open(pid) for pid in pids]
            campaign.kill()
            poll = select.poll()
            for descriptor in descriptors:
                poll.register(descriptor, select.POLLIN)
                assert poll.poll(10_000)
                poll.unregister(descriptor)
                os.close(descriptor)


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
