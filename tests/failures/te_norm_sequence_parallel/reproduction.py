"""Sum the gradients of a norm over the tensor-parallel ranks, as megatron-core does at the end of a step."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

from matrix.kit import megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

WIDTH = 8
SUMS = ("_allreduce_layernorm_grads", "_allreduce_non_tensor_model_parallel_grads")  # up to 0.12; from 0.13 on


class GradientNotSummed(AssertionError):
    """A rank keeps the gradient of its own part of the sequence."""


def sum_gradients(rank: Rank, *, normalization: str, sequence_parallel: bool = True) -> float:
    """Return the gradient of each parameter of a TENorm after megatron-core's own function has summed those of ranks.

    megatron-core's and Transformer Engine's Python are real; no kernel runs. Before, each rank has its number plus one.
    """
    torch = megatron.start(rank, tensor_parallel=rank.world_size)
    from megatron.core import parallel_state
    from megatron.core.transformer import TransformerConfig

    end_of_step: Any = importlib.import_module("megatron.core.distributed.finalize_model_grads")
    extension: Any = importlib.import_module("megatron.core.extensions.transformer_engine")
    config = TransformerConfig(
        num_layers=1,
        hidden_size=WIDTH,
        num_attention_heads=2,
        tensor_model_parallel_size=rank.world_size,
        sequence_parallel=sequence_parallel,
        normalization=normalization,
        use_cpu_initialization=True,
    )
    model = torch.nn.Sequential(extension.TENorm(config, WIDTH))
    model.ddp_config = type("DdpConfig", (), {"use_custom_fsdp": False, "use_megatron_fsdp": False})()
    for parameter in model.parameters():
        parameter.main_grad = torch.full_like(parameter, rank.rank + 1.0)
    sums = next(function for name in SUMS if (function := getattr(end_of_step, name, None)))
    group = [parallel_state.get_tensor_model_parallel_group()] * (len(inspect.signature(sums).parameters) - 2)
    sums([model], config, *group)
    gradients = {float(parameter.main_grad.mean()) for parameter in model.parameters()}
    megatron.stop()
    own, every = rank.rank + 1.0, sum(range(1, rank.world_size + 1))
    if gradients == ({every} if sequence_parallel else {own}):
        return gradients.pop()
    raise GradientNotSummed(f"the gradients are {sorted(gradients)}, the sum of all ranks is {every}")
