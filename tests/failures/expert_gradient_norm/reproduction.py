"""Compare the gradient norm that the optimizer reports with the norm over the gradients of all ranks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from matrix.kit import cpu_device, megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

EXPERTS = 2
WIDTH = 8  # of inputs and outputs of an expert, before it is split
TOLERANCE = 1e-5  # relative: upstream sums squares in float32


class NormTooSmall(AssertionError):
    """The reported norm is that of a part of the gradients."""


class NormWrong(AssertionError):
    """The reported norm is larger than that of all gradients, or not a number."""


def norm(rank: Rank, *, expert_parallel: int = 1, expert_tensor_parallel: int = 2, bias: bool = False) -> float:
    """Give every parameter a gradient of ones, and return the ratio of the norm that the optimizer reports.

    Upstream's grouped linear layers, data parallel wrapper and optimizer are real; no other rank has a copy of an
    expert's parameter. The sum of squares is taken by megatron-core's own torch function instead of a CUDA kernel.
    """
    sizes = {"expert_model_parallel_size": expert_parallel, "expert_tensor_parallel_size": expert_tensor_parallel}
    torch = megatron.start(rank, tensor_parallel=2, **sizes)
    if rank.device == "cpu":
        cpu_device.claim_gpu()
    model, optimizer = build(rank, torch, bias=bias, **sizes)
    for parameter in model.parameters():
        parameter.main_grad.fill_(1.0)
        parameter.grad = parameter.main_grad
    reported = float(optimizer.get_grad_norm())
    device = megatron.device(rank)
    experts = torch.tensor([sum(p.numel() for name, p in model.named_parameters() if "expert" in name)], device=device)
    torch.distributed.all_reduce(experts)
    expected = math.sqrt(int(experts) + WIDTH)  # each tensor parallel rank has the same dense parameter
    megatron.stop()
    figures = f"{reported:.6f} is reported, {expected:.6f} is the norm of all gradients"
    if reported < expected * (1 - TOLERANCE):
        raise NormTooSmall(figures)
    if not reported <= expected * (1 + TOLERANCE):
        raise NormWrong(figures)
    return reported / expected


def build(rank: Rank, torch: Any, *, bias: bool, **sizes: int) -> tuple[Any, Any]:
    """Return the two layers of experts and a dense parameter in upstream's wrapper, and their optimizer."""
    from megatron.core import utils
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.extensions import transformer_engine as layers
    from megatron.core.optimizer import OptimizerConfig, clip_grads, get_megatron_optimizer
    from megatron.core.transformer.module import MegatronModule
    from megatron.core.transformer.transformer_config import TransformerConfig

    layer = {"num_layers": 1, "hidden_size": WIDTH, "num_attention_heads": 2, "add_bias_linear": bias}
    mixture = {"num_moe_experts": EXPERTS, "moe_ffn_hidden_size": WIDTH, "moe_grouped_gemm": True}
    plain = {"perform_initialization": False, "gradient_accumulation_fusion": False, "sequence_parallel": True}
    config = TransformerConfig(**layer, **mixture, **plain, tensor_model_parallel_size=2, **sizes)
    linear = {"init_method": torch.nn.init.zeros_, "bias": bias, "skip_bias_add": True, "is_expert": True}
    shape = (EXPERTS // config.expert_model_parallel_size, WIDTH, WIDTH)
    model = MegatronModule(config)
    model.expert_1 = layers.TEColumnParallelGroupedLinear(*shape, **linear, config=config)
    model.expert_2 = layers.TERowParallelGroupedLinear(*shape, **linear, config=config)
    model.dense = torch.nn.Parameter(torch.ones(WIDTH, device=megatron.device(rank)))
    wrapped = DistributedDataParallel(config, DistributedDataParallelConfig(), model)
    clip_grads.multi_tensor_applier = utils.local_multi_tensor_applier
    clip_grads.l2_norm_impl = utils.local_multi_tensor_l2_norm
    return wrapped, get_megatron_optimizer(OptimizerConfig(optimizer="sgd", lr=0.1), [wrapped])
