"""Train a tiny GPT of Transformer Engine's layers for two steps."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from matrix.kit import gpt, megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


class LossNotFalling(AssertionError):
    """The second step on the same batch has no smaller loss than the first."""


def train(rank: Rank, **settings: Any) -> list[float]:
    """Return the losses of two steps on one batch; `settings` are those of the TransformerConfig. No stand-in."""
    torch = megatron.start(rank)
    model = gpt.build_te_model(rank, **settings)
    batch = next(gpt.batch_stream(torch, megatron.device(rank)))
    losses = gpt.train(torch, model, itertools.repeat(batch), steps=2)
    megatron.stop()
    first, second = losses
    if not second < first:  # nor is it NaN
        raise LossNotFalling(f"losses {losses}")
    return losses
