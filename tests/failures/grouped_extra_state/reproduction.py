"""Save experts that have met FP8."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.kit import experts, megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def save(rank: Rank, *, recipe: str) -> int:
    """Return the number of entries in the sharded state of the experts under a recipe of Transformer Engine."""
    made = experts.build(rank)
    from megatron.core import parallel_state
    from transformer_engine.common import recipe as recipes

    scaling = getattr(recipes, recipe)()
    made.fp8_meta.update(fp8_checkpoint=True, recipe=scaling, num_gemms=experts.EXPERTS)
    if scaling.delayed():
        made.init_fp8_meta_tensors(scaling)
    groups = {"dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}
    state = made.sharded_state_dict(metadata=groups)
    megatron.stop()
    return len(state)
