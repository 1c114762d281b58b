"""Pass tokens through a tiny GPT whose rotary embedding Transformer Engine applies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.kit import gpt, megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def forward(rank: Rank) -> list[int]:
    """Return the shape of the losses, nothing replaced."""
    torch = megatron.start(rank)
    model = gpt.build_te_model(rank, embedding="rope", apply_rope_fusion=True)
    tokens, labels, positions, mask = next(gpt.batch_stream(torch, megatron.device(rank)))
    with torch.no_grad():
        losses = model(tokens, positions, mask, labels=labels)
    megatron.stop()
    return list(losses.shape)
