"""Rotate tokens with the rotary embedding that Transformer Engine applies, alone and in a tiny GPT."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from matrix.kit import gpt, megatron, te_extension

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

TOKENS, HEADS, WIDTH = 4, 2, 4


def rotate(rank: Rank, *, fused: bool) -> list[int] | str:
    """Return the shape of the rotated tokens; fused, the kernel that Transformer Engine's Python calls.

    megatron-core and Transformer Engine's Python are real; the compiled extension is a stand-in, and APEX is hidden.
    """
    sys.modules["apex.transformer.functional"] = None  # type: ignore[assignment]
    torch = megatron.start(rank)
    from megatron.core.models.common.embeddings.rope_utils import apply_rotary_pos_emb
    from megatron.core.transformer import TransformerConfig

    config = TransformerConfig(
        num_layers=1, hidden_size=HEADS * WIDTH, num_attention_heads=HEADS, apply_rope_fusion=fused
    )
    result: list[int] | str
    try:
        result = list(
            apply_rotary_pos_emb(torch.zeros(TOKENS, 1, HEADS, WIDTH), torch.zeros(TOKENS, 1, 1, WIDTH), config).shape
        )
    except te_extension.StandInError as error:
        result = str(error)
    megatron.stop()
    return result


def forward(rank: Rank) -> list[int]:
    """Return the shape of the losses, nothing replaced."""
    torch = megatron.start(rank)
    model = gpt.build_te_model(rank, embedding="rope", apply_rope_fusion=True)
    tokens, labels, positions, mask = next(gpt.batch_stream(torch, megatron.device(rank)))
    with torch.no_grad():
        losses = model(tokens, positions, mask, labels=labels)
    megatron.stop()
    return list(losses.shape)
