"""What a rank that trains one layout after the other keeps, and what it puts back after each.

It keeps its connection with the others, and the groups that upstream made of them: NCCL takes long to make a
communicator. It puts back what upstream's modules hold, so that no layout sees what an earlier one left.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any, Final

UPSTREAM: Final = ("megatron", "transformer_engine")
PYTHONS: Final = ("__builtins__", "__dict__", "__weakref__")  # names that are not of upstream
MISSING: Final = object()


def _is_upstreams(name: object) -> bool:
    return isinstance(name, str) and name.partition(".")[0] in UPSTREAM


def _modules() -> dict[str, ModuleType]:
    return {name: module for name, module in list(sys.modules.items()) if _is_upstreams(name) and module}


def _is_holder(value: object) -> bool:
    """Return whether a value may hold what a layout leaves: a collection, or upstream's class, object or cache."""
    if isinstance(value, (dict, list, set, deque)):
        return True
    if isinstance(value, (type, functools._lru_cache_wrapper)):
        return _is_upstreams(value.__module__)
    return _is_upstreams(type(value).__module__) and hasattr(value, "__dict__")


def _content(holder: Any) -> Any:
    """Return a copy of what a holder holds, by name or key, or in order; a cache counts as empty."""
    if isinstance(holder, (list, set, deque)):
        return list(holder)
    if isinstance(holder, functools._lru_cache_wrapper):
        return {}
    return {name: value for name, value in _names(holder).items() if name not in PYTHONS}


def _names(holder: Any) -> Any:
    """Return the values of a dictionary by key, of a module, class or object by name."""
    return holder if isinstance(holder, dict) else vars(holder)


def _put_back(holder: Any, content: Any) -> None:
    """Let a holder hold what it held; nothing is changed that need not be, since all else reads it meanwhile."""
    if isinstance(holder, functools._lru_cache_wrapper):
        holder.cache_clear()
    elif isinstance(holder, (list, set, deque)):
        if list(map(id, holder)) != list(map(id, content)):
            holder.clear()
            (holder.update if isinstance(holder, set) else holder.extend)(content)
    else:
        current = _content(holder)
        if isinstance(holder, type):  # whose names are a view
            remove, put = partial(type.__delattr__, holder), partial(type.__setattr__, holder)
        else:
            values = _names(holder)
            remove, put = values.__delitem__, values.__setitem__
        for name in current.keys() - content.keys():
            remove(name)
        for name, value in content.items():
            if current.get(name, MISSING) is not value:
                put(name, value)


@dataclass(frozen=True)
class UpstreamState:
    """What upstream's modules hold, their classes, their objects and their collections; variables and torch's dtype."""

    modules: frozenset[str]
    contents: tuple[tuple[Any, Any], ...]
    environ: dict[str, str]
    dtype: Any
    random: Any

    @classmethod
    def now(cls) -> UpstreamState:
        """Return that of this process."""
        import torch

        modules = _modules()
        contents: dict[int, tuple[Any, Any]] = {}
        holders: list[Any] = list(modules.values())
        while holders:
            holder = holders.pop()
            if id(holder) not in contents:
                contents[id(holder)] = holder, (content := _content(holder))
                holders += filter(_is_holder, content.values() if isinstance(content, dict) else content)
        rows = tuple(contents.values())
        return cls(frozenset(modules), rows, dict(os.environ), torch.get_default_dtype(), torch.get_rng_state())

    def put_back(self) -> None:
        """Let all hold what they held. What was imported since is forgotten, and would be imported anew."""
        import torch

        for name in _modules().keys() - self.modules:
            del sys.modules[name]
        for holder, content in self.contents:
            _put_back(holder, content)
        for name in os.environ.keys() - self.environ.keys():
            del os.environ[name]
        os.environ.update(self.environ)
        torch.set_default_dtype(self.dtype)
        torch.set_rng_state(self.random)
        gc.collect()
        torch.cuda.empty_cache()


@dataclass
class KeptGroups:
    """torch.distributed.new_group, which gives the groups that it made for an earlier layout.

    Within a layout each call has a group of its own, as upstream means it: two may be used at the same time.
    """

    make: Callable[..., Any]
    groups: dict[Any, list[Any]] = field(default_factory=dict)
    used: Counter[Any] = field(default_factory=Counter)

    def __call__(self, ranks: Sequence[int] | None = None, **options: Any) -> Any:
        """Return a group."""
        if options.get("pg_options"):  # of NCCL; each is another
            return self.make(ranks, **options)
        key = (None if ranks is None else tuple(ranks), *sorted(options.items()))
        groups, number = self.groups.setdefault(key, []), self.used[key]
        self.used[key] += 1
        if number == len(groups):
            groups.append(self.make(ranks, **options))
        return groups[number]


@dataclass(frozen=True)
class LivingRank:
    """This process, which runs one layout after the other."""

    state: UpstreamState
    groups: KeptGroups

    def put_back(self) -> None:
        """Be ready for another layout."""
        self.groups.used.clear()
        self.state.put_back()


@functools.cache
def this_rank() -> LivingRank:
    """Return that of this process. Call it before its first layout."""
    import torch

    gc.freeze()  # what is there stays: it need not be searched after each layout
    torch.distributed.new_group = groups = KeptGroups(torch.distributed.new_group)
    return LivingRank(UpstreamState.now(), groups)
