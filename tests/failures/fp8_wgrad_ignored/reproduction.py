"""Make the FP8 recipe with and without fp8_wgrad."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.kit import megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


class WgradIgnored(AssertionError):
    """fp8_wgrad changes nothing in the recipe."""


def compare(rank: Rank) -> str:
    """Return the recipe without fp8_wgrad, which must differ from the one with it."""
    megatron.start(rank)
    from megatron.core.fp8_utils import get_fp8_recipe
    from megatron.core.transformer.transformer_config import TransformerConfig

    made = [
        get_fp8_recipe(
            TransformerConfig(num_layers=1, hidden_size=16, num_attention_heads=1, fp8="hybrid", fp8_wgrad=wgrad)
        )
        for wgrad in (True, False)
    ]
    megatron.stop()
    if made[0] == made[1]:
        raise WgradIgnored(f"both recipes are {made[0]}")
    return str(made[1])
