"""Save the layer-wise optimizer's state by upstream's save_checkpoint; load each rank's part into a new optimizer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from matrix.kit import megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

WIDTH = 8  # of two square weights, one for each rank
ARGUMENTS = (
    "--num-layers 1 --hidden-size 8 --num-attention-heads 2 --seq-length 8 --max-position-embeddings 8 "
    "--micro-batch-size 1 --train-iters 1 --lr 0.1 --no-save-rng --ckpt-format torch --optimizer sgd"
)


class OptimizerStateLost(AssertionError):
    """A rank loads a momentum that is not the one it saved."""


def save_and_load(rank: Rank, *, context_parallel: int) -> float:
    """Step once with a gradient of the rank's own, save, load; return the momentum of this rank.

    Upstream's LayerWiseDistributedOptimizer, save_checkpoint and load_state_dict_from_file are real. Instead of Muon,
    torch's SGD with momentum updates the weights. The ranks save one after another.
    """
    torch = megatron.start(rank, context_parallel_size=context_parallel)
    from megatron.training import checkpointing

    model, optimizer = build(rank, torch)
    for parameter in model.parameters():
        parameter.main_grad = torch.full_like(parameter, rank.rank + 1.0)
    optimizer.step()
    saved = momentum(optimizer)
    set_arguments(rank, context_parallel)
    save = optimizer.save_state_dict_to_file
    paths: list[str] = []

    def in_turn(path: str) -> None:
        paths.append(path)
        for turn in range(rank.world_size):
            if turn == rank.rank:
                save(path)
            torch.distributed.barrier()

    optimizer.save_state_dict_to_file = in_turn
    with megatron.saving():
        checkpointing.save_checkpoint(1, [model], optimizer, None, 0)
    _, fresh = build(rank, torch)
    fresh.load_state_dict_from_file(paths[0])
    loaded = momentum(fresh)
    megatron.stop()
    if loaded != saved:
        raise OptimizerStateLost(
            f"the momentum {saved} was saved, {loaded} is loaded from {paths[0].rpartition('/')[2]}"
        )
    return saved


def build(rank: Rank, torch: Any) -> tuple[Any, Any]:
    """Return a model of two weights, and the layer-wise optimizer of which this rank has one of them."""
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.optimizer.layer_wise_optimizer import LayerWiseDistributedOptimizer
    from megatron.core.optimizer.optimizer import FP32Optimizer
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer.module import MegatronModule
    from megatron.core.transformer.transformer_config import TransformerConfig

    model = MegatronModule(TransformerConfig(num_layers=1, hidden_size=WIDTH, num_attention_heads=2))
    for name in ("first", "second"):
        model.register_parameter(name, torch.nn.Parameter(torch.ones(WIDTH, WIDTH, device=megatron.device(rank))))
    config = OptimizerConfig(optimizer="sgd", lr=0.1, clip_grad=0.0)
    names = {"wd_mult": 1.0, "lr_mult": 1.0, "is_expert_parallel": False, "is_decoupled_lr": False}
    inner = torch.optim.SGD([{"params": list(model.parameters()), **names}], lr=0.1, momentum=0.9)
    groups = ProcessGroupCollection.use_mpu_process_groups()
    return model, LayerWiseDistributedOptimizer([FP32Optimizer(inner, config, lambda *_: None)], config, groups)


def momentum(optimizer: Any) -> float:
    """Return the mean momentum of this rank's weight."""
    (state,) = optimizer.chained_optimizers[0].optimizer.state.values()
    return float(state["momentum_buffer"].mean())


def set_arguments(rank: Rank, context_parallel: int) -> None:
    """Parse and validate Megatron-LM's arguments, and set its global ones."""
    from megatron.training import arguments, global_vars

    sys.argv = ["pretrain_gpt.py", *ARGUMENTS.split(), "--save", str(rank.workdir)]
    sys.argv += ["--context-parallel-size", str(context_parallel)]
    parsed = arguments.parse_args()
    parsed.use_layer_wise_distributed_optimizer = True  # as --optimizer dist_muon
    parsed.optimizer = "dist_sgd"  # up to 0.17 the beginning of the name is compared
    parsed.use_dist_ckpt = False  # as --ckpt-format torch
    global_vars.set_args(parsed)
