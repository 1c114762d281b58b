"""Save a checkpoint whose common state holds objects besides tensors and plain data; read it with another release."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matrix.kit import megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

FRAMEWORK = "training_framework"  # a module that both the writer and the reader have, as that of a framework
SOURCE = "class ModelMeta:\n    def __init__(self, name):\n        self.name = name\n"


class StateWrong(AssertionError):
    """The common state is not the one that was written."""


def write(rank: Rank, *, state: str, **_: bool) -> str:
    """Save a checkpoint with this state into rank.checkpoint; return what it holds."""
    from megatron.core import dist_checkpointing

    megatron.start(rank)
    folder = rank.checkpoint / "model"
    folder.mkdir()
    common = {"iteration": 1, "content": content(rank.checkpoint, state)}
    with megatron.saving():
        dist_checkpointing.save(sharded_state_dict=common, checkpoint_dir=str(folder))
    megatron.stop()
    return type(common["content"]).__name__


def read(rank: Rank, *, state: str, listed: bool = False) -> str:
    """Load the checkpoint, where `listed` after its class was listed; return what it holds.

    Raises StateWrong, and whatever is raised upstream.
    """
    from megatron.core import dist_checkpointing

    torch = megatron.start(rank)
    expected = content(rank.checkpoint, state)
    if listed:
        torch.serialization.add_safe_globals([type(expected)])
    loaded = dist_checkpointing.load(sharded_state_dict={}, checkpoint_dir=str(rank.checkpoint / "model"))
    if plain(loaded["content"]) != plain(expected):
        raise StateWrong(f"{loaded['content']!r} instead of {expected!r}")
    megatron.stop()
    return type(loaded["content"]).__name__


def content(folder: Path, state: str) -> Any:
    """Return what a checkpoint holds besides the iteration; `folder` is that of the module of the framework."""
    if state == "arguments":  # Megatron-LM's training saves its arguments so
        return argparse.Namespace(hidden_size=8, bf16=True)
    if state == "stream":  # as the extra state of a module of Transformer Engine
        return io.BytesIO(b"extra state")
    (folder / f"{FRAMEWORK}.py").write_text(SOURCE, encoding="utf-8")
    sys.path.insert(0, str(folder))
    return __import__(FRAMEWORK).ModelMeta("gpt")


def plain(value: Any) -> Any:
    """Return a value that can be compared."""
    return value.getvalue() if isinstance(value, io.BytesIO) else vars(value)
