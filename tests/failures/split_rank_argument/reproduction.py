"""Make a TransformerConfig from the settings of an older run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def reproduce(rank: Rank) -> None:
    """Make it."""
    from megatron.core.transformer import TransformerConfig

    TransformerConfig(num_layers=2, hidden_size=8, num_attention_heads=2, pipeline_model_parallel_split_rank=None)
