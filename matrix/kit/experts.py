"""The experts of a mixture in one Transformer Engine GroupedLinear, as megatron-core builds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.kit import cpu_device, megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

EXPERTS = 2
WIDTH = 16  # of inputs and outputs


def build(rank: Rank, *, bias: bool = False, **options: Any) -> Any:
    """Start megatron-core and return the experts; `options` are further ones of the TransformerConfig."""
    torch = megatron.start(rank)
    if rank.device == "cpu":
        cpu_device.claim_gpu()
    from megatron.core.extensions.transformer_engine import TEColumnParallelGroupedLinear
    from megatron.core.transformer.transformer_config import TransformerConfig

    layer = {"num_layers": 1, "hidden_size": WIDTH, "num_attention_heads": 1}
    mixture = {"num_moe_experts": EXPERTS, "moe_ffn_hidden_size": WIDTH, "moe_grouped_gemm": True}
    plain = {"perform_initialization": False, "gradient_accumulation_fusion": False}
    config = TransformerConfig(**layer, **mixture, **plain, add_bias_linear=bias, **options)
    sizes = {"num_gemms": EXPERTS, "input_size": WIDTH, "output_size": WIDTH}
    linear = {"init_method": torch.nn.init.zeros_, "bias": bias, "skip_bias_add": False, "is_expert": True}
    return TEColumnParallelGroupedLinear(**sizes, **linear, config=config)
