"""Compare the logged load balancing loss with and without recomputation of the activations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.kit import megatron, router

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

TOLERANCE = 1e-5  # relative, in float32


class LoggedTwice(AssertionError):
    """The logged loss is twice that without recomputation."""


class LogWrong(AssertionError):
    """The logged loss is wrong in another way."""


def log(rank: Rank, *, recompute: bool) -> float:
    """Return the ratio of the logged losses of one forward and backward pass."""
    torch = megatron.start(rank)
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.transformer.moe import moe_utils

    upstream = router.build(moe_router_load_balancing_type="aux_loss")

    tracker: Any = next(
        module for module in (parallel_state, moe_utils) if hasattr(module, "get_moe_layer_wise_logging_tracker")
    ).get_moe_layer_wise_logging_tracker()

    def logged(checkpointed: bool) -> float:
        tracker.clear()
        tokens = router.sequence(torch).requires_grad_()
        if checkpointed:
            output = tensor_parallel.checkpoint(lambda states: upstream(states)[0], False, tokens)
        else:
            output = upstream(tokens)[0]
        output.sum().backward()
        (losses,) = tracker.values()
        return float((losses["values"] if isinstance(losses, dict) else losses).sum())

    factor = logged(recompute) / logged(False)
    megatron.stop()
    figures = f"the logged loss is {factor:.6f} times that without recomputation"
    if abs(factor - 1) < TOLERANCE:
        return factor
    if abs(factor - 2) < TOLERANCE:
        raise LoggedTwice(figures)
    raise LogWrong(figures)
