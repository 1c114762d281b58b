"""The device of a rank, and its wait for the others."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from matrix.kit import megatron
from matrix.kit.rank import Rank


@pytest.fixture
def barriers(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Put a torch with two GPUs in place of the real one; return its barriers."""
    passed: list[None] = []
    torch = types.ModuleType("torch")
    torch.device = lambda *parts: parts  # type: ignore[attr-defined]
    torch.cuda = types.SimpleNamespace(device_count=lambda: 2)  # type: ignore[attr-defined]
    torch.distributed = types.SimpleNamespace(barrier=lambda: passed.append(None))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    return passed


@pytest.mark.usefixtures("barriers")
@pytest.mark.parametrize(("number", "device", "expected"), [(3, "cpu", ("cpu",)), (3, "cuda", ("cuda", 1))])
def test_ranks_share_gpus_round_robin(number: int, device: str, expected: tuple[object, ...]) -> None:
    assert megatron.device(Rank(number, 4, device, "", Path())) == expected


def test_objects_of_gloo_are_never_freed(barriers: list[None]) -> None:
    """Freeing one can hang: it waits for a thread that needs the interpreter lock."""
    gloo, nccl, ended = types.SimpleNamespace(), types.SimpleNamespace(), list[bool]()
    distributed = sys.modules["torch"].distributed
    world = types.SimpleNamespace(pg_map=[gloo, nccl])
    distributed.distributed_c10d = types.SimpleNamespace(_world=world)
    distributed.get_backend = lambda group: "gloo" if group is gloo else "nccl"
    distributed.destroy_process_group = lambda: ended.append(True)
    before = [sys.getrefcount(group) for group in (gloo, nccl)]
    megatron.leave()
    assert [sys.getrefcount(group) for group in (gloo, nccl)] == [before[0] + 1, before[1]]
    assert (len(barriers), ended) == (2, [True])


def test_ranks_wait_twice(barriers: list[None]) -> None:
    """The second barrier lets gloo's thread release the tensors of the first."""
    megatron.wait_for_all()
    assert len(barriers) == 2
