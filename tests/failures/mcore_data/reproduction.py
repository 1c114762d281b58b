"""Save and load a flattened tensor, as the state of the distributed optimizer is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.kit import megatron
from matrix.kit.gpt import CheckpointMismatch

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

ROWS, COLUMNS = 4, 2


def save_and_load(rank: Rank) -> list[float]:
    """Return the loaded values, which must be the saved ones."""
    torch = megatron.start(rank)
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing import ShardedTensor

    def state(values: Any) -> dict[str, Any]:
        whole = slice(0, ROWS * COLUMNS)
        return {
            "moment": ShardedTensor.from_rank_offsets_flat("moment", values, (ROWS, COLUMNS), flattened_range=whole)
        }

    folder = rank.workdir / "checkpoint"
    folder.mkdir()
    saved = torch.arange(float(ROWS * COLUMNS))
    with megatron.saving():
        dist_checkpointing.save(state(saved), str(folder))
    loaded = dist_checkpointing.load(state(torch.zeros_like(saved)), str(folder))["moment"]
    megatron.stop()
    if not torch.equal(loaded, saved):
        raise CheckpointMismatch(f"{loaded.tolist()} instead of {saved.tolist()}")
    return [float(value) for value in loaded]
