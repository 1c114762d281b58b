"""Level gpu: Megatron-LM's own pretrain_gpt.py with a tiny model at the report's length.

One rank ran on an H100 with megatron-core 0.16.1 and 0.17.1, two that shared it with 0.17.1. On the host it takes 8*S^2
bytes for each rank's worker: it runs in a memory cgroup only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.kit.pretrain import train

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def pretrain(rank: Rank, *, sequence: int, mask: bool = True) -> dict[str, Any]:
    """Train two iterations with the sequence shared by all ranks; return the number of samples that were counted.

    Raises LackError where the clone, a compiler or Transformer Engine is missing, and whatever Megatron-LM raises.
    """
    off = [] if mask else ["--no-create-attention-mask-in-dataloader"]
    return train(rank, "--context-parallel-size", str(rank.world_size), *off, sequence=sequence)
