"""Save an MLP and load it into one that torch's FSDP2 shards, by upstream's distributed checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.kit import megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

WIDTH = 4  # hidden size; the feed-forward size is four times as much


class RowsMoved(AssertionError):
    """A rank loads other rows of the weight than its own."""


def save_and_load(rank: Rank, *, gated: bool, saved: bool, loaded: bool) -> list[int]:
    """Save a first layer whose row N is N everywhere, load it; return the rows of this rank.

    `saved` and `loaded`: whether FSDP2 shards the model that is saved, and the loaded one. Upstream's MLP, wrapper
    and checkpoints are real. Without a GPU, FSDP2's mesh is one of CPUs.
    """
    torch = megatron.start(rank)
    from megatron.core import dist_checkpointing, parallel_state

    metadata = {"dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}
    folder = rank.workdir / "checkpoint"
    if rank.rank == 0:
        folder.mkdir()
    torch.distributed.barrier()
    written = build(rank, torch, gated=gated, sharded=saved)
    number_rows(torch, written)
    with megatron.saving():
        dist_checkpointing.save(written.sharded_state_dict(prefix="", metadata=metadata), str(folder))
    read = build(rank, torch, gated=gated, sharded=loaded)
    number_rows(torch, read)
    expected = rows(read)
    with torch.no_grad():
        read.linear_fc1.weight.zero_()
    state = dist_checkpointing.load(read.sharded_state_dict(prefix="", metadata=metadata), str(folder))
    if not loaded:  # FSDP2's parameters are loaded in place
        read.load_state_dict(state)
    found = rows(read)
    megatron.stop()
    if found != expected:
        raise RowsMoved(f"rows {found} of the saved weight instead of {expected}")
    return found


def build(rank: Rank, torch: Any, *, gated: bool, sharded: bool) -> Any:
    """Return an MLP, which FSDP2 shards over the ranks with `sharded`."""
    from megatron.core.distributed import TorchFullyShardedDataParallel
    from megatron.core.distributed.distributed_data_parallel_config import DistributedDataParallelConfig
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.mlp import MLP, MLPSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=1,
        hidden_size=WIDTH,
        num_attention_heads=2,
        gated_linear_unit=gated,
        add_bias_linear=False,
        use_cpu_initialization=True,
    )
    layers = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
    mlp = MLP(config, layers).to(megatron.device(rank))
    if not sharded:
        return mlp
    if rank.device == "cpu":
        from torch.distributed import DeviceMesh

        on_device = DeviceMesh.from_group
        DeviceMesh.from_group = lambda group, _, **options: on_device(group, "cpu", **options)
    TorchFullyShardedDataParallel(config, DistributedDataParallelConfig(), mlp)
    return mlp


def number_rows(torch: Any, mlp: Any) -> None:
    """Fill row N of the first layer's whole weight with N."""
    weight = mlp.linear_fc1.weight
    numbers = torch.arange(weight.shape[0], dtype=weight.dtype, device=weight.device)[:, None].expand(weight.shape)
    with torch.no_grad():
        if hasattr(weight, "full_tensor"):
            start = torch.distributed.get_rank() * local(weight).shape[0]
            numbers = numbers[start : start + local(weight).shape[0]]
        local(weight).copy_(numbers)


def rows(mlp: Any) -> list[int]:
    """Return the numbers of the rows that this rank has."""
    return [int(number) for number in local(mlp.linear_fc1.weight)[:, 0]]


def local(weight: Any) -> Any:
    """Return the part of a sharded weight that this rank has."""
    return weight.to_local() if hasattr(weight, "to_local") else weight
