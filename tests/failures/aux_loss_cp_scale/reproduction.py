"""Compare the gradient of a router's load balancing loss under context parallelism with a formula."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.kit import router

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

TOLERANCE = 1e-4  # relative, in float32


class DividedByContext(AssertionError):
    """The gradient is divided by the context parallel size."""


class BalanceWrong(AssertionError):
    """The gradient is wrong in another way."""


def balance(rank: Rank, *, context_parallel: int) -> float:
    """Return the ratio of both gradients after a step of upstream's; each rank has its part of the sequence."""
    factor = router.step(rank, per_token=False, context_parallel=context_parallel)
    figures = f"the gradient is {factor:.6f} of that of the formula"
    if abs(factor - 1) < TOLERANCE:
        return factor
    if abs(factor * context_parallel - 1) < TOLERANCE:
        raise DividedByContext(figures)
    raise BalanceWrong(figures)
