"""The device of a rank, its wait for the others, and what its saves need."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from matrix.kit import megatron
from matrix.kit.rank import LackError, Rank


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


class CheckpointingException(Exception):
    """As megatron-core's."""


def save(absent: str) -> None:
    with megatron.saving():
        try:
            raise ModuleNotFoundError(f"No module named {absent!r}", name=absent)
        except ModuleNotFoundError as error:
            raise CheckpointingException(f"Cannot import a default strategy. Error: {error}") from error


@pytest.mark.parametrize(("name", "expected"), [("zarr", LackError), ("megatron.core", CheckpointingException)])
def test_absent_package_of_a_save_is_lacking(
    monkeypatch: pytest.MonkeyPatch, name: str, expected: type[Exception]
) -> None:
    """megatron-core raises its own exception from that of the import; a part of its own that is absent is a failure."""
    monkeypatch.setattr(megatron, "find_spec", lambda name: name == "psutil" or None)
    with pytest.raises(expected, match=name):
        save(name)


def save_unregistered() -> None:
    with megatron.saving():
        try:
            raise KeyError(("zarr", 1))
        except KeyError as error:
            raise CheckpointingException("Cannot find a default strategy for: ('save_sharded', 'zarr', 1).") from error


@pytest.mark.parametrize(
    ("installed", "expected"), [((), LackError), (("zarr", "tensorstore"), CheckpointingException)]
)
def test_unregistered_strategy_of_absent_stores(
    monkeypatch: pytest.MonkeyPatch, installed: tuple[str, ...], expected: type[Exception]
) -> None:
    """megatron-core 0.5 registers no strategy without them (KeyError: ('zarr', 1)); with them the error is its own."""
    monkeypatch.setattr(megatron, "find_spec", lambda name: name in {*installed, "psutil"} or None)
    with pytest.raises(expected, match="zarr"):
        save_unregistered()


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({megatron.WRITER}, LackError),  # a save of 0.13 - 0.16 would not return
        ({megatron.WRITER, "psutil"}, CheckpointingException),
        ({""}, CheckpointingException),  # 0.5, which needs no psutil
    ],
)
def test_save_without_psutil_is_not_begun(
    monkeypatch: pytest.MonkeyPatch, found: set[str], expected: type[Exception]
) -> None:
    monkeypatch.setattr(megatron, "find_spec", lambda name: name in found or None)
    with pytest.raises(expected, match="psutil" if expected is LackError else "begun"), megatron.saving():
        raise CheckpointingException("begun")
