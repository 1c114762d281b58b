"""Split a sharded tensor into its rows, as the conversion of a checkpoint to fsdp_dtensor does for each layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.kit import megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

LAYERS, WIDTH = 4, 3


class RowsWrong(AssertionError):
    """The parts are not the rows of the tensor."""


def split(rank: Rank, *, native: bool = False) -> list[float]:
    """Return the first value of each layer of which this rank has a part: all layers of all ranks are those stored.

    `native`: the layers are chunks of torch, for which each rank gets the whole tensor. Raises what upstream raises.
    """
    torch = megatron.start(rank)
    from megatron.core.distributed.fsdp.src.megatron_fsdp.uneven_dtensor import split_dtensor
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh(rank.device, (rank.world_size,))
    whole = torch.arange(float(LAYERS * WIDTH), device=megatron.device(rank)).reshape(LAYERS, WIDTH)
    stored = distribute_tensor(whole, mesh, [Shard(0)])
    parts = stored.redistribute(placements=[Replicate()]).split(1) if native else list(split_dtensor(stored, 1, dim=0))
    values = [float(part.to_local()[0, 0]) for part in parts if part.to_local().numel()]
    megatron.stop()
    own = LAYERS if native else LAYERS // rank.world_size
    expected = [float(WIDTH * layer) for layer in range(LAYERS)][:own] if native else values_of(rank.rank, own)
    if values != expected:
        raise RowsWrong(f"{values} instead of {expected}")
    return values


def values_of(rank: int, own: int) -> list[float]:
    """Return the first value of each layer in a rank's shard."""
    return [float(WIDTH * layer) for layer in range(rank * own, (rank + 1) * own)]
