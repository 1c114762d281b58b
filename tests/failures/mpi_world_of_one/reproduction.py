"""init_process_group("mpi") without mpirun."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def world_of_mpi(rank: Rank) -> dict[str, Any]:
    """Initialise torch.distributed by mpi; raise AssertionError when its world is not the launcher's."""
    import torch

    torch.distributed.init_process_group("mpi")
    value = torch.ones(1)
    torch.distributed.all_reduce(value)
    found = {"world": torch.distributed.get_world_size(), "rank": torch.distributed.get_rank(), "sum": value.item()}
    if found["world"] != rank.world_size:
        raise AssertionError(f"the mpi backend has a world of {found['world']}, the launcher started {rank.world_size}")
    torch.distributed.destroy_process_group()
    return found
