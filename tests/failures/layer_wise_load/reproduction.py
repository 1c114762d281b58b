"""Let an optimizer derive the model's parameters from its own float32 ones, as each load of quantized weights does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.kit import cpu_device, megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

WIDTH = 8  # of two square weights, one for each rank
LOADED, MAIN = 1.0, 2.0  # every value of the model's parameters and of the optimizer's after a load


class RanksDiffer(AssertionError):
    """The ranks have different weights of one model."""


def load(rank: Rank, *, layer_wise: bool, gather: bool = False) -> list[float]:
    """Return the mean of each weight after what follows a load; releases up to 0.19.2 leave it as it was loaded.

    `layer_wise`: the optimizer of --optimizer muon, with torch's SGD in Muon's place; otherwise the distributed one.
    `gather`: gather the parameters afterwards. Upstream's optimizers and data parallel wrapper are real.
    """
    torch = megatron.start(rank)
    if rank.device == "cpu":
        cpu_device.without_streams()
        name_as_cuda(torch)
    model, optimizer = build(rank, torch, layer_wise=layer_wise)
    (inner,) = optimizer.chained_optimizers
    for group in inner.fp32_from_float16_groups if layer_wise else inner.shard_fp32_from_float16_groups:
        for parameter in group:
            parameter.detach().fill_(MAIN)
    if hasattr(optimizer, "quantize_and_sync_model_params_from_main_params"):
        optimizer.quantize_and_sync_model_params_from_main_params()
    if gather:
        optimizer.allgather_params()
    weights = [float(weight.detach().float().mean()) for weight in model.parameters()]
    ranks: list[Any] = [None] * rank.world_size
    torch.distributed.all_gather_object(ranks, weights)
    megatron.stop()
    if ranks[0] != ranks[-1]:
        raise RanksDiffer(f"the weights are {ranks[0]} on the first rank and {ranks[-1]} on the last")
    return weights


def build(rank: Rank, torch: Any, *, layer_wise: bool) -> tuple[Any, Any]:
    """Return a model of two weights in upstream's data parallel wrapper, and its optimizer."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.optimizer.layer_wise_optimizer import LayerWiseDistributedOptimizer
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer.module import MegatronModule
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(num_layers=1, hidden_size=WIDTH, num_attention_heads=2, bf16=True)
    model = MegatronModule(config)
    for name in ("first", "second"):
        weight = torch.full((WIDTH, WIDTH), LOADED, dtype=torch.bfloat16, device=megatron.device(rank))
        model.register_parameter(name, torch.nn.Parameter(weight))
    wrapped = DistributedDataParallel(
        config, DistributedDataParallelConfig(use_distributed_optimizer=not layer_wise), model
    )
    settings = {"lr": 0.1, "bf16": True, "clip_grad": 0.0, "use_distributed_optimizer": not layer_wise}
    if not layer_wise:
        return model, get_megatron_optimizer(OptimizerConfig(optimizer="adam", **settings), [wrapped])
    inner = torch.optim.SGD([{"params": list(model.parameters()), "is_expert_parallel": False}], lr=0.1)
    groups = ProcessGroupCollection.use_mpu_process_groups()
    options = OptimizerConfig(optimizer="sgd", **settings)
    return model, LayerWiseDistributedOptimizer([inner], options, groups, model_chunks=[wrapped])


def name_as_cuda(torch: Any) -> None:
    """Make a CPU tensor's type the name of CUDA's: the optimizers accept no other parameters."""
    kind = torch.Tensor.type
    torch.Tensor.type = lambda tensor, *to: kind(tensor, *to) if to else kind(tensor).replace("torch.", "torch.cuda.")
