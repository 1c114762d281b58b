"""Split a padding mask over the tensor parallel ranks of a model that has process groups of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.kit import gpt, megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

SIZE = 2  # of each tensor parallel group


class MaskOfAnotherGroup(AssertionError):
    """A rank has the part of the mask that it would have in the global tensor parallel group."""


class MaskWrong(AssertionError):
    """A rank has another part of the mask, or none."""


def split(rank: Rank, *, own_groups: bool) -> int:
    """Return the number of hidden tokens in this rank's part of the mask; half of all tokens are hidden.

    Upstream's GPTModel, with sequence parallelism. Megatron's global groups are [0, 1] and [2, 3]; with `own_groups`
    those of the model are [0, 2] and [1, 3].
    """
    torch = megatron.start(rank, tensor_parallel=SIZE)
    from megatron.core import parallel_state
    from megatron.core.process_groups_config import ProcessGroupCollection

    groups = ProcessGroupCollection.use_mpu_process_groups()
    everywhere = torch.distributed.get_rank(parallel_state.get_tensor_model_parallel_group())
    if own_groups:
        pairs = [torch.distributed.new_group(ranks) for ranks in ([0, 2], [1, 3])]
        groups.tp = pairs[rank.rank % 2]
    model = gpt.build_model(rank, pg_collection=groups)
    model.config.sequence_parallel = True
    tokens, _, positions, _ = next(gpt.batch_stream(torch, megatron.device(rank)))
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    mask[:, : gpt.SEQUENCE // SIZE] = True
    part = own_part(torch, model._preprocess(tokens, positions, padding_mask=mask))
    parts = mask.chunk(SIZE, 1)
    expected = parts[torch.distributed.get_rank(groups.tp)]
    megatron.stop()
    if part is not None and part.equal(expected):
        return int(part.sum())
    if part is not None and part.equal(parts[everywhere]):
        raise MaskOfAnotherGroup(f"{int(part.sum())} tokens are hidden instead of {int(expected.sum())}")
    raise MaskWrong(f"the part of the mask is {None if part is None else tuple(part.shape)}")


def own_part(torch: Any, results: Any) -> Any:
    """Return the mask among the results of _preprocess: the boolean tensor, None without one."""
    return next((item for item in results if isinstance(item, torch.Tensor) and item.dtype == torch.bool), None)
