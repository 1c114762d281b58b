"""Give Transformer Engine's FusedAdam a parameter that Megatron-FSDP shards, and split its state as a save does.

FusedAdam's Python and megatron-core are real; Transformer Engine's extension is a stand-in, which a new state does not
need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.kit import megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

ROWS, WIDTH = 8, 4  # of an MLP's first layer: half of the rows belong to the gate
NAME = "module.mlp.linear_fc1.weight"


def split_state(rank: Rank, *, fused: bool) -> list[int]:
    """Return the shape of this rank's part of the momentum of the gate's rows, as in a checkpoint of fsdp_dtensor.

    `fused`: Transformer Engine's FusedAdam, otherwise torch's Adam. Raises what megatron-core raises.
    """
    torch = megatron.start(rank)
    from megatron.core.transformer.fsdp_dtensor_checkpoint import handle_swiglu_in_state_dict

    model = build(rank, torch)
    weight = model.mlp.linear_fc1.weight
    state = fused_state(weight) if fused else torch_state(torch, weight)
    _, split = handle_swiglu_in_state_dict(model, {}, {"state": {NAME: state}})
    shape = list(split["state"][f"{NAME}_w"]["exp_avg"].to_local().shape)
    megatron.stop()
    return shape


def fused_state(weight: Any) -> dict[str, Any]:
    """Return the state that FusedAdam's first step makes before it runs a kernel."""
    from transformer_engine.pytorch.optimizers import FusedAdam

    optimizer = FusedAdam([weight])
    optimizer.initialize_state(weight, False)
    return dict(optimizer.state[weight])


def torch_state(torch: Any, weight: Any) -> dict[str, Any]:
    """Return the state after a step of torch's Adam."""
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.Adam([weight])
    optimizer.step()
    return dict(optimizer.state[weight])


def build(rank: Rank, torch: Any) -> Any:
    """Return a model with one parameter, which is sharded and marked as Megatron-FSDP does."""
    from megatron.core.distributed.fsdp.src.megatron_fsdp import param_and_grad_buffer, utils
    from megatron.core.transformer.transformer_config import TransformerConfig
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(rank.device, (rank.world_size, 1), mesh_dim_names=("dp", "tp"))
    index = utils.FSDPDistributedIndex(mesh, dp_shard_dim="dp", tp_dim="tp")
    whole = torch.nn.Parameter(torch.zeros(ROWS, WIDTH, device=megatron.device(rank)))
    part = ROWS // rank.world_size
    local = whole.detach()[rank.rank * part : (rank.rank + 1) * part].clone()
    weight = torch.nn.Parameter(param_and_grad_buffer.make_fsdp_dtensor(local, whole, index))
    weight.megatron_fsdp_dist_index = index
    weight.megatron_fsdp_slice = slice(rank.rank * local.numel(), (rank.rank + 1) * local.numel())
    model = torch.nn.Module()
    model.config = TransformerConfig(num_layers=1, hidden_size=WIDTH, num_attention_heads=2)
    model.mlp = torch.nn.Module()
    model.mlp.linear_fc1 = torch.nn.Module()
    model.mlp.linear_fc1.weight = weight
    return model
