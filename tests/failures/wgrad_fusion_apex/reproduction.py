"""Build a linear layer of megatron-core with gradient accumulation fusion, where APEX is absent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.kit import megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

HIDDEN = 8  # the size of the layer's input and output


def build(rank: Rank, *, fusion: bool) -> str:
    """Build the output layer of a GPT as GPTModel does; return the name of its class."""
    torch = megatron.start(rank)
    from megatron.core.model_parallel_config import ModelParallelConfig
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear

    config = ModelParallelConfig(
        use_cpu_initialization=True, perform_initialization=False, gradient_accumulation_fusion=fusion
    )
    layer = ColumnParallelLinear(HIDDEN, HIDDEN, config=config, init_method=torch.nn.init.zeros_, bias=False)
    megatron.stop()
    return type(layer).__name__
