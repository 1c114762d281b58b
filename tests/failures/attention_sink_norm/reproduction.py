"""Compare the gradient norm that the optimizer reports with that of the gradients of all ranks, for attention sinks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from matrix.kit import cpu_device, megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

HEADS, WIDTH = 4, 16
TOLERANCE = 1e-5  # relative: upstream sums squares in float32


class SinksLeftOut(AssertionError):
    """The norm has the sinks of the first tensor parallel rank alone."""


class SinkNormWrong(AssertionError):
    """The norm is wrong in another way."""


def norm(rank: Rank) -> float:
    """Give the sinks of upstream's attention gradients of ones, and return the norm that the optimizer reports.

    The data parallel wrapper and the optimizer are real. The sum of squares is taken by megatron-core's own torch
    function instead of a CUDA kernel.
    """
    megatron.start(rank, tensor_parallel=rank.world_size)
    cpu_device.claim_gpu()
    cpu_device.without_streams()
    from megatron.core import utils
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, clip_grads, get_megatron_optimizer
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.module import MegatronModule
    from megatron.core.transformer.transformer_config import TransformerConfig

    layer = {"num_layers": 1, "hidden_size": WIDTH, "num_attention_heads": HEADS, "softmax_type": "learnable"}
    config = TransformerConfig(**layer, tensor_model_parallel_size=rank.world_size, use_cpu_initialization=True)
    model = MegatronModule(config)
    model.attention = DotProductAttention(config, 1, AttnMaskType.causal, "self")
    wrapped = DistributedDataParallel(config, DistributedDataParallelConfig(), model)
    clip_grads.multi_tensor_applier = utils.local_multi_tensor_applier
    clip_grads.l2_norm_impl = utils.local_multi_tensor_l2_norm
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="sgd", lr=0.1), [wrapped])
    for parameter in model.parameters():
        parameter.main_grad.fill_(1.0)
        parameter.grad = parameter.main_grad
    reported, expected = float(optimizer.get_grad_norm()), math.sqrt(HEADS)  # one sink for each head
    megatron.stop()
    figures = f"{reported:.6f} is reported, {expected:.6f} is the norm of all sinks"
    if abs(reported - expected) < expected * TOLERANCE:
        return reported
    if abs(reported - math.sqrt(HEADS / rank.world_size)) < expected * TOLERANCE:
        raise SinksLeftOut(figures)
    raise SinkNormWrong(figures)
