"""Train a tiny GPT in FP8 with local CUDA graphs, by Megatron-LM's own pretrain_gpt.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.kit import pretrain

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def train(rank: Rank, *, graphs: str) -> dict[str, Any]:
    """Return the number of samples; `graphs` are the options of the graphs. Nothing is replaced."""
    return pretrain.train(rank, "--fp8-format", "hybrid", *graphs.split())
