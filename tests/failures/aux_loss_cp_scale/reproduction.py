"""Compare the gradient of a router's load balancing loss under context parallelism with a formula."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.kit import router

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


class DividedByContext(AssertionError):
    """The gradient is divided by the context parallel size."""


def balance(rank: Rank, *, context_parallel: int, per_token: bool = False) -> float:
    """Return the ratio of both gradients after a step of upstream's; each rank has its part of the sequence."""
    return router.judge(
        router.step(rank, per_token=per_token, context_parallel=context_parallel),
        1 / context_parallel,
        DividedByContext,
    )
