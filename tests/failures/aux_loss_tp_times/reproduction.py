"""Compare the gradient of a router's load balancing loss, summed over tensor parallel ranks, with a formula."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.kit import megatron, router

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


class TimesTensorParallel(AssertionError):
    """The gradient is that of the formula, times the tensor parallel size."""


def balance(rank: Rank) -> float:
    """Return the ratio of both gradients; each rank has its part of the sequence.

    Upstream sums the gradient of a router over the ranks (finalize_model_grads), as is done here. The probabilities of
    a token have the sum one: only the balancing loss, attached to them, has a gradient.
    """
    torch = megatron.start(rank, tensor_parallel=rank.world_size)
    parallel = {"tensor_model_parallel_size": rank.world_size, "sequence_parallel": rank.world_size > 1}
    upstream = router.build(**parallel, moe_router_load_balancing_type="aux_loss")
    with torch.enable_grad():
        upstream(router.sequence(torch))[0].sum().backward()
    gradient = upstream.weight.grad
    torch.distributed.all_reduce(gradient)
    factor = router.ratio(gradient, router.expected_gradient(torch, upstream.weight))
    megatron.stop()
    return router.judge(factor, rank.world_size, TimesTensorParallel)
