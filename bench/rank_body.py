"""The body of bench_ranks.py, in a module of its own: each rank imports it, and its import counts."""

from __future__ import annotations

from matrix.kit.rank import Rank


def all_reduce(rank: Rank) -> float:
    """Do the least that needs all ranks."""
    import torch

    torch.distributed.init_process_group(
        "gloo", init_method=rank.init_method, rank=rank.rank, world_size=rank.world_size
    )
    ones = torch.ones(1)
    torch.distributed.all_reduce(ones)
    torch.distributed.destroy_process_group()
    return float(ones)
