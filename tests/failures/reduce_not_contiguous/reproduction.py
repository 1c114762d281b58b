"""Sum a tensor over the tensor parallel ranks, contiguous or transposed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.kit import megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

SHAPE = (3, 5)


class NotReduced(AssertionError):
    """The tensor of this rank alone is returned."""


class ReducedWrong(AssertionError):
    """What is returned is neither this rank's tensor nor the sum."""


def reduce(rank: Rank, *, contiguous: bool, backward: bool = False) -> float:
    """Return the first number of upstream's sum of the ranks' tensors, in the forward pass or of a gradient."""
    torch = megatron.start(rank, tensor_parallel=rank.world_size)
    from megatron.core import tensor_parallel

    own = torch.full(SHAPE, float(rank.rank + 1)).T
    own = own.contiguous() if contiguous else own
    if backward:  # the gradient of the copy is the sum of the ranks' gradients
        leaf = torch.zeros(SHAPE[::-1], requires_grad=True)
        tensor_parallel.copy_to_tensor_model_parallel_region(leaf).backward(own)
        result = leaf.grad
    else:
        result = tensor_parallel.reduce_from_tensor_model_parallel_region(own.clone())
    megatron.stop()
    total, figures = sum(range(1, rank.world_size + 1)), f"{float(result[0, 0])} is returned in rank {rank.rank}"
    if bool((result == total).all()):
        return float(total)
    if bool((result == rank.rank + 1).all()):
        raise NotReduced(f"{figures}, the sum is {total}")
    raise ReducedWrong(figures)
