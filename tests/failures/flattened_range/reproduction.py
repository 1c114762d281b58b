"""Ask the distributed optimizer of a tiny GPT for the layout in which its state is saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.kit import gpt, megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def lay_out(rank: Rank, *, sharding: str = "") -> int:
    """Return the number of entries in the layout; `sharding` is its kind, the release's default without one."""
    torch = megatron.start(rank)
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    model = gpt.build_model(rank)
    wrapped = DistributedDataParallel(
        model.config, DistributedDataParallelConfig(use_distributed_optimizer=True), model
    )
    if rank.device == "cpu":
        name_as_cuda(torch)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(lr=0.001, clip_grad=0.0, use_distributed_optimizer=True), [wrapped]
    )
    optimizer.step()  # with gradients of zero: it makes the state
    metadata = {"distrib_optim_sharding_type": sharding} if sharding else None
    state = optimizer.sharded_state_dict(model.sharded_state_dict(prefix=""), metadata=metadata)
    megatron.stop()
    return len(state["param_state"])


def name_as_cuda(torch: Any) -> None:
    """Make a CPU tensor's type the name of CUDA's: the optimizer accepts no other parameters."""
    kind = torch.Tensor.type
    torch.Tensor.type = lambda tensor, *to: kind(tensor, *to) if to else kind(tensor).replace("torch.", "torch.cuda.")
