"""Train a tiny GPT whose layers are captured in CUDA graphs by Transformer Engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.kit import gpt, megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def train(rank: Rank) -> list[float]:
    """Return the loss of one step, nothing replaced."""
    torch = megatron.start(rank)
    model = gpt.build_te_model(rank, enable_cuda_graph=True)
    losses = gpt.train(torch, model, gpt.batch_stream(torch, megatron.device(rank)), steps=1)
    megatron.stop()
    return losses
