"""What a layout leaves in upstream's modules is put back; groups are kept."""

from __future__ import annotations

import gc
import os
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from matrix.kit.parity.living_rank import KeptGroups, UpstreamState, this_rank

SOURCE = """
import functools
from collections import OrderedDict, deque

GROUP = None
LOGGED = {"values": {}}
ORDERED = OrderedDict(first=1)
QUEUE = deque([1])
NAMES = ["first", "second"]
SEEN = {1}

class Scale:
    factor = 1.0
    buffers = {}

class Manager:
    def __init__(self):
        self.recipe = None

MANAGER = Manager()
calls = []

@functools.lru_cache
def chosen(value):
    calls.append(value)
    return value
"""


class Torch:
    """In place of torch: what is put back besides."""

    def __init__(self) -> None:
        self.dtype, self.random = "float32", 7
        self.cuda = SimpleNamespace(empty_cache=lambda: None)
        self.distributed = SimpleNamespace(new_group=lambda ranks, **_: object())

    def get_default_dtype(self) -> str:
        return self.dtype

    def set_default_dtype(self, dtype: str) -> None:
        self.dtype = dtype

    def get_rng_state(self) -> int:
        return self.random

    def set_rng_state(self, state: int) -> None:
        self.random = state


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    made: Any = Torch()
    monkeypatch.setitem(sys.modules, "torch", made)
    return made


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch, torch: Torch) -> Iterator[Any]:
    module: Any = types.ModuleType("megatron.invented")
    exec(SOURCE, vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    yield module
    sys.modules.pop("megatron.late", None)


def test_what_a_layout_leaves_is_put_back(upstream: Any, torch: Torch) -> None:
    os.environ["NVTE_BEFORE"] = "1"
    before, found = {**vars(upstream)}, UpstreamState.now()
    buffers, scale = upstream.Scale.buffers, upstream.Scale
    upstream.GROUP, upstream.Scale, upstream.ADDED = "group", None, True
    upstream.LOGGED["values"]["loss"] = 1.0
    upstream.ORDERED["second"] = 2
    upstream.QUEUE.append(2)
    upstream.NAMES[:] = ["second", "first"]
    upstream.SEEN.add(2)
    scale.factor, scale.added = 2.0, True
    buffers["mpu"] = "memory"
    upstream.MANAGER.recipe, upstream.MANAGER.added = "fp8", True
    upstream.chosen(1)
    os.environ |= {"NVTE_BEFORE": "0", "NVTE_AFTER": "1"}
    torch.dtype, torch.random = "bfloat16", 8
    sys.modules["megatron.late"] = types.ModuleType("megatron.late")

    found.put_back()
    assert {**vars(upstream)} == before
    assert ({"values": {}}, OrderedDict(first=1), deque([1])) == (upstream.LOGGED, upstream.ORDERED, upstream.QUEUE)
    assert (["first", "second"], {1}) == (upstream.NAMES, upstream.SEEN)
    assert (scale.factor, hasattr(scale, "added"), buffers) == (1.0, False, {})
    assert vars(upstream.MANAGER) == {"recipe": None}
    assert (upstream.chosen(1), upstream.calls) == (1, [1])
    assert (os.environ["NVTE_BEFORE"], "NVTE_AFTER" in os.environ) == ("1", False)
    assert (torch.dtype, torch.random) == ("float32", 7)
    assert "megatron.late" not in sys.modules


def test_what_is_not_upstreams_stays(upstream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object of another package, and Python's own functions, which upstream's modules name."""
    other: Any = types.ModuleType("megatrix_of_another")
    monkeypatch.setitem(sys.modules, other.__name__, other)
    upstream.FOREIGN = foreign = SimpleNamespace(value=1)
    UpstreamState.now().put_back()
    found = UpstreamState.now()
    other.value = foreign.value = 2
    vars(upstream)["__builtins__"]["invented"] = 3
    found.put_back()
    assert (other.value, foreign.value) == (2, 2)
    assert vars(upstream)["__builtins__"].pop("invented") == 3


def test_groups_of_an_earlier_layout_are_kept() -> None:
    """Each call of a layout has its own; those with options of NCCL are made anew."""
    kept = KeptGroups(lambda ranks, **_: object())

    def layout() -> list[Any]:
        kept.used.clear()
        return [
            kept([0, 1], group_desc="tp"),
            kept(ranks=[0, 1], group_desc="tp"),
            kept([0, 1], group_desc="dp"),
            kept([0], group_desc="tp"),
            kept(),
        ]

    first = layout()
    assert len(set(map(id, first))) == len(first)
    assert layout() == first
    with_options = kept([0], pg_options="options")
    kept.used.clear()
    assert kept([0], pg_options="options") is not with_options


def test_a_rank_is_found_once(upstream: Any, torch: Torch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its first layout: what later ones leave is put back, and its groups are kept."""
    monkeypatch.setattr(gc, "freeze", lambda: None)
    process = this_rank()
    groups = []
    for _ in range(2):
        groups.append(torch.distributed.new_group([0, 1]))
        upstream.GROUP = groups[-1]
        assert this_rank() is process
        process.put_back()
        assert upstream.GROUP is None
    assert groups[0] is groups[1]
    this_rank.cache_clear()
