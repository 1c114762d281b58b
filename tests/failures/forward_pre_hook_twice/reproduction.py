"""Wrap a model with --overlap-param-gather, and enter and leave a training more than once, as a framework does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.kit import cpu_device, megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

WIDTH = 8  # of the one weight


def train_often(rank: Rank, *, trainings: int, asks: bool = False) -> int:
    """Disable, enable and disable the wrapper's hooks, as each call of upstream's train() does; return how many remain.

    `asks`: disable them only where there are any, as the framework's workaround does. Upstream's wrapper is real.
    """
    torch = megatron.start(rank)
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.transformer.module import MegatronModule
    from megatron.core.transformer.transformer_config import TransformerConfig

    if rank.device == "cpu":
        cpu_device.without_streams()
    config = TransformerConfig(num_layers=1, hidden_size=WIDTH, num_attention_heads=2)
    model = MegatronModule(config)
    model.weight = torch.nn.Parameter(torch.ones(WIDTH, WIDTH, device=megatron.device(rank)))
    overlap = DistributedDataParallelConfig(
        use_distributed_optimizer=True, overlap_grad_reduce=True, overlap_param_gather=True
    )
    wrapped = DistributedDataParallel(config, overlap, model)
    for _ in range(trainings):
        if not asks or wrapped.remove_forward_pre_hook_handles:
            wrapped.disable_forward_pre_hook(param_sync=False)  # before the first iteration
        wrapped.enable_forward_pre_hook()  # after it
        wrapped.disable_forward_pre_hook()  # after the last one
    megatron.stop()
    return len(wrapped.remove_forward_pre_hook_handles)
