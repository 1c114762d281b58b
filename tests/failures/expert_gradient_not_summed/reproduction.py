"""Sum the gradient of an expert over the ranks that have a copy of it, as upstream's data parallel wrapper does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.kit import cpu_device, megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

WIDTH = 8


class ExpertNotSummed(AssertionError):
    """A rank keeps the gradient of its own tokens."""


class ExpertGradientWrong(AssertionError):
    """The gradient is wrong in another way."""


def reduce(rank: Rank, *, expert_tensor_parallel: int) -> float:
    """Return the gradient of an expert's column parallel layer after the reduction; before, it is the rank plus 1.

    Each of both tensor parallel ranks has the whole expert and a half of the tokens, or a half of the expert and all of
    them. There is one data parallel rank: nothing is divided.
    """
    parallel = {"tensor_model_parallel_size": rank.world_size, "expert_tensor_parallel_size": expert_tensor_parallel}
    torch = megatron.start(rank, tensor_parallel=rank.world_size, expert_tensor_parallel_size=expert_tensor_parallel)
    cpu_device.without_streams()
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.tensor_parallel import ColumnParallelLinear
    from megatron.core.transformer.module import MegatronModule
    from megatron.core.transformer.transformer_config import TransformerConfig

    layer = {"num_layers": 1, "hidden_size": WIDTH, "num_attention_heads": 2, "use_cpu_initialization": True}
    config = TransformerConfig(**layer, **parallel, num_moe_experts=2, sequence_parallel=True, add_bias_linear=False)
    model = MegatronModule(config)
    linear = {"init_method": torch.nn.init.ones_, "bias": False, "is_expert": True, "skip_bias_add": True}
    model.expert = ColumnParallelLinear(WIDTH, WIDTH, config=config, **linear)
    model.forward = lambda: model.expert.weight.sum() * (rank.rank + 1)
    wrapped = DistributedDataParallel(config, DistributedDataParallelConfig(), model)
    wrapped().backward()
    wrapped.finish_grad_sync()
    gradient = float(model.expert.weight.main_grad.mean())
    megatron.stop()
    own, copies = rank.rank + 1, rank.world_size // expert_tensor_parallel
    expected = sum(range(1, rank.world_size + 1)) if copies > 1 else own
    if gradient == expected:
        return gradient
    figures = f"the gradient is {gradient} in rank {rank.rank}, the sum of the copies is {expected}"
    if gradient == own:
        raise ExpertNotSummed(figures)
    raise ExpertGradientWrong(figures)
