"""Context-parallel slicing by megatron-core's own get_batch_on_this_cp_rank, and its memory.

For cp ranks a sequence is cut into 2*cp chunks; rank r has chunks r and 2*cp-1-r, so that each has as much causal work.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matrix.kit import absent_packages, megatron
from matrix.kit import gpt_dataset as data
from matrix.kit.rank import LackError

from . import measure
from .law import LONG, SHORT, law

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

MASKED = 8192  # tokens of the sample with a mask: 512 MiB at the peak, on each rank
SEQUENCE_DIMENSION = {"attention_mask": 2}  # of [batch, 1, S, S]: the queries; all others are [batch, S]


class SlicesDiffer(AssertionError):
    """The slices of the ranks do not add up to the batch."""


def slices(rank: Rank) -> dict[str, Any]:
    """Load the whole sample on every rank, as training does, slice it, join the slices, compare every key.

    The ranks' peaks are measured, too: each rank takes the whole 8*S^2 bytes, however many share the sequence.
    Raises SlicesDiffer, LawBroken, and LackError for a release that can't slice on a CPU.
    """
    absent_packages.install(**rank.stand_ins)
    import torch

    cut = slicer()
    folder = rank.workdir / f"rank-{rank.rank}"  # before torch.distributed starts, each rank builds its own index
    short, masked = (data.dataset(folder, length, mask=True) for length in (SHORT, MASKED))
    long = data.dataset(folder, LONG, mask=False)
    cap = data.leave_room(data.ROOM)
    measured = law({MASKED: measure.taken(masked, short)[0]})
    torch.distributed.init_process_group(
        "gloo", init_method=rank.init_method, rank=rank.rank, world_size=rank.world_size
    )
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel(context_parallel_size=rank.world_size)
    for sample in (masked[0], long[0]):
        whole = torch.utils.data.default_collate([sample])
        for key, part in cut(dict(whole), parallel_state.get_context_parallel_group()).items():
            parts = gather(torch, part, rank.world_size)
            if not torch.equal(put_together(torch, parts, SEQUENCE_DIMENSION.get(key, 1)), whole[key]):
                raise SlicesDiffer(f"{key} of {tuple(whole[key].shape)} on {rank.world_size} ranks")
    megatron.leave()
    return {"cap": cap, "compared": [MASKED, LONG], **measured}


def slicer() -> Any:
    """Return the release's function as one of (batch, group). Raises LackError where it can't run on a CPU."""
    from megatron.core import utils

    function = getattr(utils, "get_batch_on_this_cp_rank", None)
    if function is None:
        raise LackError("this release slices in Megatron-LM's training code, which is in no wheel")
    if ".cuda(" in inspect.getsource(function):
        raise LackError("this release slices with .cuda(): needs a CUDA device")
    known = inspect.signature(function).parameters
    given = {"is_hybrid_cp": False} if "is_hybrid_cp" in known else {}
    if "cp_group" in known:  # without it the function uses parallel_state
        return lambda batch, group: function(batch, cp_group=group, **given)
    return lambda batch, group: function(batch)


def gather(torch: Any, part: Any, ranks: int) -> list[Any]:
    """Return the parts of all ranks; gloo does not support booleans."""
    wired = part.to(torch.uint8) if part.dtype == torch.bool else part
    parts = [torch.empty_like(wired) for _ in range(ranks)]
    torch.distributed.all_gather(parts, wired.contiguous())
    return [each.to(part.dtype) for each in parts]


def put_together(torch: Any, parts: Sequence[Any], dimension: int) -> Any:
    """Return the tensor whose chunks are in `parts`, by rank."""
    halves = [part.chunk(2, dimension) for part in parts]
    return torch.cat([first for first, _ in halves] + [second for _, second in reversed(halves)], dimension)
