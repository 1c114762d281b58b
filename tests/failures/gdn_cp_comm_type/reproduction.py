"""What fails, on each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def reproduce(rank: Rank) -> None:
    """Run it. Raises what upstream raises."""
    from contextlib import suppress

    from megatron.core.ssm.gated_delta_net import GatedDeltaNet
    from megatron.core.transformer import ModuleSpec, TransformerConfig
    from megatron.core.transformer import transformer_layer as tl

    from matrix.kit import megatron

    megatron.start(rank)
    config = TransformerConfig(
        num_layers=1, hidden_size=8, num_attention_heads=2, context_parallel_size=2, cp_comm_type="p2p"
    )
    with suppress(ImportError):
        tl.TransformerLayer(
            config, tl.TransformerLayerSubmodules(self_attention=ModuleSpec(GatedDeltaNet, submodules=1))
        )
    megatron.stop()
